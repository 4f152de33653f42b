"""Its tasks. Each writes a line to a file once it has run."""

import asyncio
import os
import time

from beanstalk_client.integrations.django.library import task


def note(line):
    with open(os.environ["SHOP_NOTES"], "a") as notes:
        notes.write(f"{line}\n")


@task
def remind(order, due=0.0):
    note(f"{order} {time.time() - due:.6f}")


@task(queue_name="mail")
async def mail(order):
    note(f"mail {order}")


@task
def bake(order, seconds):
    note(f"begun {order}")
    time.sleep(seconds)
    note(f"done {order}")


@task
async def simmer(order, seconds):
    note(f"begun {order}")
    await asyncio.sleep(seconds)
    note(f"done {order}")


@task(takes_context=True, retries=2, backoff=0.01)
def deliver(context, order):
    note(f"attempt {context.attempt}")
    raise OSError(f"nobody is at home for {order}")


@task(takes_context=True, retries=2, backoff=0.01)
async def deliver_later(context, order):
    note(f"attempt {context.attempt}")
    raise OSError(f"nobody is at home for {order}")


@task
def fail():
    raise OSError("at once")


@task
def return_an_object():
    return object()


@task
async def give_up():
    raise asyncio.CancelledError


@task(takes_context=True, retries=1, backoff=0.01)
async def cancel_itself_later(context):
    note(f"attempt {context.attempt}")
    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)


@task(takes_context=True, retries=1, backoff=0.01)
async def fail_and_cancel_itself_later(context):
    note(f"attempt {context.attempt}")
    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)
    raise OSError("at once")


class HostileError(Exception):
    @property
    def __notes__(self):
        raise OSError("no notes")


@task(takes_context=True, retries=1, backoff=0.01)
def raise_hostile(context):
    note(f"attempt {context.attempt}")
    raise HostileError


@task(takes_context=True, retries=1, backoff=0.01)
async def raise_hostile_later(context):
    note(f"attempt {context.attempt}")
    raise HostileError


@task(takes_context=True, retries=1, backoff=0.01)
async def close_itself(context):
    note(f"attempt {context.attempt}")
    raise GeneratorExit


@task
def exit_at_once():
    raise SystemExit(3)


@task
def count_rows():
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("select count(*) from sqlite_master")
        note(f"rows {cursor.fetchone()[0]}")


@task
async def count_rows_later():
    from asgiref.sync import sync_to_async

    await sync_to_async(count_rows.func)()


def no_task():
    note("it ran, and must not")


@task(takes_context=True)
def add(context, one, other):
    context.task_result.refresh()
    note(f"{context.task_result.status} {context.attempt}")
    return {"sum": one + other}


@task(takes_context=True)
async def add_later(context, one, other):
    await context.task_result.arefresh()
    note(f"{context.task_result.status} {context.attempt}")
    return {"sum": one + other}


@task(retries=2, backoff=0.01)
def repeat(text, times):
    note("repeated")
    return text * times


@task
def shout(text, times):
    raise OSError(text * times)


@task(takes_context=True)
def hang_at_first(context):
    note(f"attempt {context.attempt}")
    if context.attempt == 1:
        time.sleep(600)
