"""Several machines, one of which leads: the journal in an engine that they all reach, and links between them."""
