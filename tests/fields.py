"""The names of what a class keeps, compiled or not."""


def fields_of(kind):
    """The names of the attributes of a class without a base: the class names them, or its annotations do, or one of its
    objects has them. Compiled, it tells all that it has.
    """
    names = (getattr(kind, each, ()) for each in ("__slots__", "__mypyc_attrs__", "__annotations__"))
    return tuple(next(filter(None, names), None) or vars(kind()))
