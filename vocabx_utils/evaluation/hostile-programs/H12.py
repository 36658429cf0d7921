import socket
def add(a, b):
    with socket.create_connection(("127.0.0.1", int("@PORT@")), timeout=2):
        return a + b
