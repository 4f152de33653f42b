"""How clients speak: commands and replies as bytes, and one client's conversation.

Knows no sockets and no files; reads no clock. Bytes and the time come in, replies go out.
"""
