import stat

place = "/workspace/odd/"
os.makedirs(place, exist_ok=True)
host = knows["host"]
for name, target in {
    "absolute": host, "relative": "../" * 40 + host, "loop": "loop", "left": "right", "right": "left",
    "fd": "/proc/self/fd", "parent": "/proc/1/root" + host, "long": "x/" * 2000,
    "folder": os.path.dirname(host)}.items():
    attempt("link " + name, lambda: os.symlink(target, place + name))
os.mkfifo(place + "pipe")
door = socket.socket(socket.AF_UNIX)
door.bind(place + "door")
for name, kind, device in [("null", stat.S_IFCHR, (1, 3)), ("disk", stat.S_IFBLK, (8, 0)), ("out", stat.S_IFCHR, (0, 0))]:
    attempt("device " + name, lambda: os.mknod(place + name, kind | 0o666, os.makedev(*device)))
with open(place + "bomb", "w") as it:
    attempt("bomb", lambda: it.truncate(1 << 40) and None)
open(place + "plain", "w").write("plain")
os.link(place + "plain", place + "hard")
attempt("hard link outside", lambda: os.link("/proc/1/exe", place + "exe"))
shell = place + "shell"
open(shell, "wb").write(open("/usr/bin/env", "rb").read())
os.chmod(shell, 0o6755)
names = [b"new\nline", b"esc\x1b[2J\x1b]0;title\x07", b"not\xff\xfeutf8", b"-rf", b"\xe2\x80\xaeright", b"w" * 255, b" ", b"..."]
for name in names:
    open(place.encode() + name, "w").write("odd")
tell()
