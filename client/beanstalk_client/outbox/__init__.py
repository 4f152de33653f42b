"""Jobs inside database transactions: a job exists if and only if the transaction commits.

    rows.py         records a command as a row of the current transaction
    database.py     what a relay needs of a database, and all SQL
    relay.py        sends the commands of committed rows to the server, and deletes the rows
    sqlalchemy.py   the outbox of a program with SQLAlchemy
    django/         an app: the outbox of a project with Django

    tasks = Tasks(..., outbox=Outbox())

Must not import SQLAlchemy or Django here: a program has one of them. No other package imports this one, except the
backend of Django's tasks with its option `outbox`.
"""
