"""What tests, conversations and figures share: servers, a client that reads as much as it is told to, and waiting."""
