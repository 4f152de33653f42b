"""The names of what a class keeps, compiled or not."""


def fields_of(kind):
    """The names of the attributes that a class declares itself in `__slots__`. Compiled, it tells all that it has; of a
    class without a base, these are the same."""
    return kind.__slots__ if hasattr(kind, "__slots__") else kind.__mypyc_attrs__
