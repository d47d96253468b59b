# What another sandbox would find, if it could see anything of this one.
import threading

libc.shmget(ctypes.c_long(knows["key"]), ctypes.c_size_t(4096), 0o1666)
call(240, b"victim", os.O_CREAT | os.O_RDWR, 0o666, None)
doors = []
for family, address in [(socket.AF_INET, ("0.0.0.0", knows["other_port"])), (socket.AF_UNIX, "\0" + knows["abstract"][1])]:
    door = socket.socket(family, socket.SOCK_STREAM)
    door.bind(address)
    door.listen()
    doors.append(door)
print("listening", flush=True)
threading.Event().wait()
