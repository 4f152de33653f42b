"""What survives the process: jobs in files. Knows no clients, no commands and no asyncio."""
