# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Programs for emulated cards in a language of their own: system calls through fcntl and mmap, layouts through ctypes,
and nothing of this project.

    cards.py NAME [ARGUMENT…]    runs one of the programs below
"""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time

PAGE = 4096
SIZE = 256 * 1024


class Info(ctypes.Structure):
    _fields_ = [("pointer", ctypes.c_uint64), ("size", ctypes.c_uint32), ("op", ctypes.c_uint32),
                ("argument", ctypes.c_uint32), ("pad", ctypes.c_uint32)]


class Buffer(ctypes.Structure):
    _fields_ = [("handle", ctypes.c_uint64), ("op", ctypes.c_uint32), ("size", ctypes.c_uint32),
                ("context", ctypes.c_uint32), ("flags", ctypes.c_uint32)]


class Chunk(ctypes.Structure):
    _fields_ = [("commands", ctypes.c_uint64), ("queue", ctypes.c_uint32), ("size", ctypes.c_uint32),
                ("flags", ctypes.c_uint32), ("others", ctypes.c_uint32 * 11)]


class Submission(ctypes.Structure):
    _fields_ = [("restore", ctypes.c_uint64), ("execute", ctypes.c_uint64), ("sequence", ctypes.c_uint64),
                ("restores", ctypes.c_uint32), ("chunks", ctypes.c_uint32), ("timeout", ctypes.c_uint32),
                ("flags", ctypes.c_uint32), ("context", ctypes.c_uint32), ("pad", ctypes.c_uint32)]


class Wait(ctypes.Structure):
    _fields_ = [("sequence", ctypes.c_uint64), ("timeout", ctypes.c_uint64), ("context", ctypes.c_uint32),
                ("flags", ctypes.c_uint32), ("others", ctypes.c_uint64 * 4)]


class Memory(ctypes.Structure):
    _fields_ = [("a", ctypes.c_uint64), ("b", ctypes.c_uint64), ("c", ctypes.c_uint64), ("op", ctypes.c_uint32),
                ("flags", ctypes.c_uint32), ("context", ctypes.c_uint32), ("elements", ctypes.c_uint32)]


class Version(ctypes.Structure):
    _fields_ = [("version", ctypes.c_int32 * 4), ("name_length", ctypes.c_uint64), ("name", ctypes.c_uint64),
                ("others", ctypes.c_uint64 * 4)]


def request(file, number, argument):
    """Makes a request of type 'd', which reads and writes its argument."""
    code = 3 << 30 | ctypes.sizeof(argument) << 16 | ord("d") << 8 | number
    fcntl.ioctl(file, code, argument)
    return argument


def refused(call, *errors):
    """Whether a call fails with one of some errors."""
    try:
        call()
    except OSError as error:
        assert error.errno in errors, error
        return True
    return False


def driver(file):
    name = ctypes.create_string_buffer(32)
    version = request(file, 0, Version(name_length=32, name=ctypes.addressof(name)))
    return name.value[:version.name_length].decode()


class Card:
    """A Gaudi card of either generation."""

    def __init__(self, path="/dev/accel/accel0", control=False):
        self.file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        # A control node knows no name.
        assert control or driver(self.file) == "habanalabs"
        hardware = self.info(0, 304)
        self.dram = int.from_bytes(hardware[8:16], "little")
        self.second = int.from_bytes(hardware[32:36], "little") >= 0x1020
        self.kept = []

    def info(self, op, size, argument=0):
        answer = ctypes.create_string_buffer(size)
        request(self.file, 0x40, Info(ctypes.addressof(answer), size, op, argument))
        return answer.raw

    def eventfd(self):
        counter = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.info(28, 8, counter)
        return counter

    def events(self):
        return int.from_bytes(self.info(30, 8), "little")

    def memory(self, **fields):
        return request(self.file, 0x44, Memory(**fields)).a

    def device(self, size=SIZE):
        handle = self.memory(op=0, a=size)
        return self.memory(op=2, b=handle) if self.second else self.dram

    def host(self, content=b"", size=SIZE):
        memory = ctypes.create_string_buffer(content, size)
        self.kept.append(memory)
        return memory, self.memory(op=2, flags=4, a=ctypes.addressof(memory), c=size)

    def unmap(self, address):
        self.memory(op=3, a=address)

    def commands(self, words):
        """Where commands are, for the card."""
        content = b"".join(word.to_bytes(8, "little") for word in words)
        if self.second:
            return self.host(content, PAGE)[1]
        handle = request(self.file, 0x41, Buffer(op=0, size=PAGE)).handle
        view = mmap.mmap(self.file, PAGE, offset=handle)
        view[:len(content)] = content
        self.kept.append(view)
        return handle

    def submit(self, queue, words, timeout=None):
        """The sequence number of a submission, which comes back where the first field was."""
        commands = self.commands(words)
        chunk = Chunk(commands, queue, 8 * len(words), 1 if self.second else 0)
        submission = Submission(execute=ctypes.addressof(chunk), chunks=1)
        if timeout:
            submission.timeout, submission.flags = timeout, 0x200
        return request(self.file, 0x42, submission).restore

    def copy(self, queue, source, target, size=SIZE):
        control = 0x89000000 if self.second else 0xC9000008
        return self.submit(queue, [size | control << 32, source, target])

    def nothing(self, queue=0, timeout=None):
        return self.submit(queue, [0x8A00000000000000 if self.second else 0xCA00000000000000], timeout)

    def wait(self, sequence, microseconds=60_000_000):
        """The status of a submission: 0 if it has completed, 1 if it has not."""
        return request(self.file, 0x43, Wait(sequence, microseconds)).sequence & 0xFFFFFFFF

    def down(self, content, target):
        memory, address = self.host(content, len(content))
        assert self.wait(self.copy(0, address, target, len(content))) == 0
        self.unmap(address)
        del memory

    def up(self, source, size=SIZE):
        memory, address = self.host(size=size)
        assert self.wait(self.copy(4, source, address, size)) == 0
        self.unmap(address)
        return memory.raw

    def export(self, address, size=SIZE):
        return self.memory(op=5, flags=os.O_RDWR | os.O_CLOEXEC, a=address, b=size) & 0xFFFFFFFF

    def close(self):
        os.close(self.file)


def opened(path, patience=60):
    """A card that may be busy or be reset for a moment."""
    until = time.monotonic() + patience
    while True:
        try:
            return Card(path)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EAGAIN) or time.monotonic() > until:
                raise
            time.sleep(0.002)


def links(process):
    """What the descriptors of a process are of, as far as that can be seen."""
    seen = []
    try:
        for number in os.listdir(f"/proc/{process}/fd"):
            seen.append(os.readlink(f"/proc/{process}/fd/{number}"))
    except OSError:
        pass
    return seen


def files():
    """What the file system shows: lists, attributes, statuses, relative paths, links."""
    assert sorted(os.listdir("/sys/class/accel")) == ["accel0", "accel1", "accel_controlD0", "accel_controlD1"]
    assert {"accel0", "accel1"} <= set(os.listdir("/dev/accel"))
    # By the folder alone, without asking for each.
    entries = [*os.scandir("/dev/accel"), *os.scandir("/dev")]
    assert not any(entry.is_file() for entry in entries if entry.name[:3] in ("acc", "nul"))
    with open("/sys/class/accel/accel1/device/vendor") as file:
        assert file.read() == "0x1da3\n"
    with open("/sys/dev/char/261:1/uevent") as file:
        assert "DEVNAME=accel/accel1\n" in file.read()
    assert refused(lambda: open("/sys/class/accel/accel1/device/vendor", "w"), errno.EACCES)
    assert refused(lambda: os.open("/dev/accel/accel2", os.O_RDWR), errno.ENOENT)
    assert refused(lambda: os.open("/dev/accel/accel0", os.O_RDWR | os.O_DIRECTORY), errno.ENOTDIR)
    assert refused(lambda: os.readlink("/dev/accel/accel0"), errno.EINVAL)
    assert os.path.realpath("/dev/accel/accel0") == "/dev/accel/accel0"
    assert os.access("/dev/accel/accel0", os.R_OK | os.W_OK) and not os.access("/dev/accel/accel9", os.F_OK)
    status = os.stat("/dev/accel/accel1")
    assert stat.S_ISCHR(status.st_mode) and (os.major(status.st_rdev), os.minor(status.st_rdev)) == (261, 1)
    folder = os.open("/dev", os.O_RDONLY)
    file = os.open("accel/accel1", os.O_RDWR, dir_fd=folder)
    nodes = os.open("/dev/accel", os.O_RDONLY)
    assert os.stat("accel0", dir_fd=nodes).st_rdev == os.stat("/dev/accel/accel0").st_rdev
    other = os.open("accel0", os.O_RDWR, dir_fd=nodes)
    assert driver(other) == "habanalabs"
    opened_status = os.fstat(file)
    assert (opened_status.st_dev, opened_status.st_ino) == (status.st_dev, status.st_ino)
    assert os.readlink(f"/proc/self/fd/{file}") == "/dev/accel/accel1"
    # Who looks for a card's user finds it as in any machine.
    child = os.fork()
    if child == 0:
        signal.pause()
    processes = [name for name in os.listdir("/proc") if name.isdigit()]
    holders = [process for process in processes if "/dev/accel/accel1" in links(process)]
    assert sorted(map(int, holders)) == sorted([os.getpid(), child]), holders
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    # Everything else is the system's.
    with open("/etc/passwd") as file:
        assert file.read()
    assert not stat.S_ISCHR(os.stat("/etc/passwd").st_mode)
    with open("/dev/null") as file:
        assert refused(lambda: driver(file.fileno()), errno.ENOTTY)
    assert refused(lambda: driver(99), errno.EBADF)


def magic(path):
    """The kind of the file system that a path or a descriptor is on."""
    answer = ctypes.create_string_buffer(256)
    c = ctypes.CDLL(None, use_errno=True)
    known = c.fstatfs(path, answer) if isinstance(path, int) else c.statfs(os.fsencode(path), answer)
    assert known == 0, (path, os.strerror(ctypes.get_errno()))
    return int.from_bytes(answer.raw[:8], "little")


def walked(path):
    """Where a path leads, found as device libraries do it: part by part, by descriptors that only name files."""
    at, rest, here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), path.split("/")[1:], []
    while rest:
        part = rest.pop(0)
        if part == "..":
            here.pop()
            os.close(at)
            at = os.open("/" + "/".join(here), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            continue
        found = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        if stat.S_ISLNK(os.fstat(found).st_mode):
            target = os.readlink("", dir_fd=found)
            assert target == os.readlink(part, dir_fd=at)
            rest = target.split("/") + rest
        else:
            at, found = found, at
            here.append(part)
        os.close(found)
    assert os.readlink(f"/proc/self/fd/{at}") == "/" + "/".join(here)
    return at, "/" + "/".join(here)


def tree(driver, name, vendor):
    """The devices as libraries for PCI and for devices look for them: `/sys/bus/pci`, classes, numbers, links."""
    before = set(os.listdir("/sys/bus/pci/devices"))
    addresses = sorted(address for address in before if driver_of(address) == driver)
    assert len(addresses) == 2, addresses
    # What the system has itself is there too, by lists and by paths.
    for address in before - set(addresses):
        with open(f"/sys/bus/pci/devices/{address}/vendor") as file:
            assert file.read().startswith("0x")
        os.close(walked(f"/sys/bus/pci/devices/{address}")[0])
    assert {"null", "zero"} <= set(os.listdir("/dev")) and "block" in os.listdir("/sys/class")
    for number, address in enumerate(addresses):
        function = f"/sys/bus/pci/devices/{address}"
        real = os.path.realpath(function)
        assert real.startswith("/sys/devices/pci") and real.endswith(address)
        assert os.path.realpath(f"{function}/subsystem") == "/sys/bus/pci"
        assert os.path.realpath(f"{function}/driver") == f"/sys/bus/pci/drivers/{driver}"
        assert os.path.realpath(f"{function}/driver/module") == f"/sys/module/{driver}"
        assert os.path.realpath(f"/sys/bus/pci/drivers/{driver}/{address}") == real
        with open(f"{function}/config", "rb") as file:
            space = file.read()
        ids = [int.from_bytes(space[at:at + 2], "little") for at in (0, 2, 0x2C, 0x2E)]
        for id, file in zip(ids, ("vendor", "device", "subsystem_vendor", "subsystem_device")):
            with open(f"{function}/{file}") as text:
                assert int(text.read(), 16) == id, file
        assert ids[0] == vendor and len(space) == 256 == os.stat(f"{function}/config").st_size
        with open(f"{function}/resource") as text:
            regions = [[int(word, 16) for word in line.split()] for line in text]
        base = int.from_bytes(space[0x10:0x18], "little")
        assert len(regions) == 13 and regions[0][0] == base & ~15 and regions[0][1] > regions[0][0]
        with open(f"{function}/uevent") as text:
            lines = dict(line.rstrip().split("=", 1) for line in text)
        assert lines["PCI_SLOT_NAME"] == address and lines["DRIVER"] == driver
        with open(f"{function}/modalias") as text:
            assert text.read().rstrip() == lines["MODALIAS"]
        for file in ("class", "revision", "irq", "numa_node"):
            with open(f"{function}/{file}") as text:
                assert int(text.read(), 0) >= -1
        # Its device, by its class and by its number, leads back to it.
        subsystem, device = name.format(number).rsplit("/", 1)
        shown = f"/sys/class/{subsystem}/{device}"
        with open(f"{shown}/uevent") as text:
            lines = dict(line.rstrip().split("=", 1) for line in text)
        node = "/dev/" + lines["DEVNAME"]
        status = os.stat(node)
        assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (int(lines["MAJOR"]), int(lines["MINOR"]))
        by_number = f"/sys/dev/char/{lines['MAJOR']}:{lines['MINOR']}"
        assert os.path.realpath(shown) == os.path.realpath(by_number) == f"{real}/{subsystem}/{device}"
        assert os.path.realpath(f"{shown}/device") == real
        assert os.path.realpath(f"{shown}/subsystem") == f"/sys/class/{subsystem}"
        assert f"{lines['MAJOR']}:{lines['MINOR']}" in os.listdir("/sys/dev/char")
        assert os.lstat(shown).st_size == len(os.readlink(shown)) and stat.S_ISLNK(os.lstat(shown).st_mode)
        assert refused(lambda: os.open(shown, os.O_RDONLY | os.O_NOFOLLOW), errno.ELOOP)
        # The same by descriptors, which are on the file system that they should be on.
        at, path = walked(by_number)
        assert path == f"{real}/{subsystem}/{device}" and magic(at) == magic(shown) == 0x62656572
        file = os.open("dev", os.O_RDONLY, dir_fd=at)
        assert os.read(file, 99).decode() == f"{lines['MAJOR']}:{lines['MINOR']}\n" and magic(file) == 0x62656572
        assert os.readlink(f"/proc/self/fd/{file}") == f"{path}/dev"
        assert os.fstat(file).st_ino == os.stat(f"{path}/dev").st_ino
        back = os.open("../..", os.O_PATH | os.O_DIRECTORY, dir_fd=at)
        assert os.readlink(f"/proc/self/fd/{back}") == real
        with open(f"/proc/self/fd/{back}/vendor") as text:
            assert int(text.read(), 16) == vendor
        # A list is the same each time, and in pieces.
        with os.scandir(f"/proc/self/fd/{back}") as entries:
            kinds = {entry.name: (entry.is_symlink(), entry.is_dir(follow_symlinks=False)) for entry in entries}
        assert sorted(kinds) == sorted(os.listdir(real)) == sorted(os.listdir(back))
        assert kinds["driver"] == (True, False) and kinds[subsystem] == (False, True)
        [os.close(descriptor) for descriptor in (at, file, back)]
        named = os.open(node, os.O_PATH)
        assert stat.S_ISCHR(os.fstat(named).st_mode) and os.fstat(named).st_rdev == status.st_rdev
        os.close(named)
    assert magic("/dev/null") == magic(os.path.dirname(node))
    assert refused(lambda: os.stat(f"{function}/nothing"), errno.ENOENT)
    assert refused(lambda: os.stat(f"{function}/vendor/nothing"), errno.ENOTDIR)
    assert os.path.realpath(f"{shown}/../../../../system") == "/sys/devices/system"


def driver_of(address):
    try:
        return os.path.basename(os.readlink(f"/sys/bus/pci/devices/{address}/driver"))
    except FileNotFoundError:
        return None


def transfer():
    """Bytes go down and up; the kernel's rules for command buffers that are mapped; wrong addresses."""
    card = Card()
    content = os.urandom(SIZE)
    device = card.device()
    card.down(content, device)
    assert card.up(device) == content
    assert refused(lambda: request(card.file, 0x7F, Info()), errno.EINVAL)
    assert refused(lambda: fcntl.ioctl(card.file, 0xC0186440, 8), errno.EFAULT)
    assert refused(lambda: card.memory(op=2, flags=4, a=PAGE, c=PAGE), errno.EFAULT)
    # A file that is written back is not pinned; a copy of it, and a file in memory, are.
    with open(__file__, "r+b") as file, open(os.memfd_create("memory"), "r+b") as memory:
        memory.truncate(PAGE)
        kinds = [(file, mmap.MAP_SHARED), (file, mmap.MAP_PRIVATE), (memory, mmap.MAP_SHARED)]
        for place, (source, flags) in enumerate(kinds):
            view = mmap.mmap(source.fileno(), PAGE, flags)
            pinned = ctypes.c_char.from_buffer(view)
            lend = lambda: card.memory(op=2, flags=4, a=ctypes.addressof(pinned), c=PAGE)
            if place == 0:
                assert refused(lend, errno.EFAULT)
            else:
                card.unmap(lend())
            del pinned
            view.close()
    if not card.second:
        handle = request(card.file, 0x41, Buffer(op=0, size=2 * PAGE)).handle
        assert refused(lambda: mmap.mmap(card.file, PAGE, offset=handle), errno.EINVAL)
        assert refused(lambda: mmap.mmap(card.file, PAGE, offset=handle + (1 << 30)), errno.EINVAL)
    # A card has no memory at the beginning, as a file has.
    assert refused(lambda: mmap.mmap(card.file, PAGE), errno.EINVAL)
    assert refused(lambda: mmap.mmap(card.file, PAGE, mmap.MAP_PRIVATE, offset=5 * PAGE), errno.EINVAL)
    if not card.second:
        view = mmap.mmap(card.file, 2 * PAGE, offset=handle)
        view[PAGE] = 5
        assert refused(lambda: mmap.mmap(card.file, 2 * PAGE, offset=handle), errno.EINVAL)
        view.close()
        view = mmap.mmap(card.file, 2 * PAGE, offset=handle)
        assert view[PAGE] == 5
        # A mapping outlives the handle, and holds the card.
        request(card.file, 0x41, Buffer(op=1, handle=handle))
        assert view[PAGE] == 5 and refused(lambda: request(card.file, 0x41, Buffer(op=2, handle=handle)), errno.EINVAL)
        view.close()
    # As many pieces of memory as a program likes, each of its own.
    pieces = [card.host(b"%d" % number, PAGE) for number in range(1500)]
    assert card.wait(card.copy(0, pieces[1234][1], device, PAGE)) == 0
    assert card.up(device, 4) == b"1234"
    [card.unmap(address) for _, address in pieces]
    # A device still has what a program has lent to it, and gives back without unmapping it from the device.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    memory = libc.mmap(None, ctypes.c_size_t(SIZE), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, ctypes.c_long(0))
    ctypes.memmove(memory, b"kept", 4)
    address = card.memory(op=2, flags=4, a=memory, c=SIZE)
    assert card.wait(card.copy(0, address, device)) == 0
    assert card.up(device)[:4] == b"kept"
    assert libc.munmap(ctypes.c_void_p(memory), ctypes.c_size_t(SIZE)) == 0
    card.down(bytes(SIZE), device)
    assert card.wait(card.copy(0, address, device)) == 0
    assert card.up(device)[:4] == b"kept"
    # What is written to memory that is gone is written nowhere.
    assert card.wait(card.copy(4, device, address)) == 0


def threads():
    """Many threads at one card; a fork that uses it; a duplicate that holds it."""
    card = Card()
    device = card.device(8 * SIZE)
    failures = []

    def work(number):
        try:
            content = bytes([number + 1]) * SIZE
            for _ in range(4):
                card.down(content, device + number * SIZE)
                assert card.up(device + number * SIZE) == content
        except Exception as error:  # Whatever it is, the main thread says so.
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    [worker.start() for worker in workers]
    [worker.join() for worker in workers]
    assert not failures, failures
    child = os.fork()
    if child == 0:
        os._exit(0 if card.up(device, SIZE) == bytes([1]) * SIZE else 1)
    assert os.waitpid(child, 0)[1] == 0
    copy = os.dup(card.file)
    card.close()
    assert refused(Card, errno.EBUSY)
    assert stat.S_ISCHR(os.fstat(copy).st_mode)
    os.close(copy)
    [view.close() for view in card.kept if isinstance(view, mmap.mmap)]
    opened("/dev/accel/accel0").close()


def interrupted():
    """A signal ends a wait for what never ends. Needs fault=hang:1."""
    card = Card()
    card.eventfd()
    sequence = card.nothing()
    caught = []
    signal.signal(signal.SIGALRM, lambda *_: caught.append(time.monotonic()))
    libc = ctypes.CDLL(None, use_errno=True)
    argument = Wait(sequence, 60_000_000)
    # Again and again, since the first may come before the call.
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    assert libc.ioctl(card.file, ctypes.c_ulong(0xC0386443), ctypes.byref(argument)) == -1
    assert ctypes.get_errno() == errno.EINTR
    signal.setitimer(signal.ITIMER_REAL, 0)
    # The handler of this language runs behind the call.
    assert caught
    assert card.wait(sequence, 0) == 1


def waited(card, sequence):
    """Whether a submission has completed. A wait alone may be ended by a signal."""
    try:
        return card.wait(sequence, 1_000_000) == 0
    except InterruptedError:
        return False


def storm():
    """Signals all the time: every request is made once, neither lost nor repeated."""
    card = Card()
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    last = 0
    for _ in range(300):
        sequence = card.nothing()
        assert sequence == last + 1, f"{sequence} came after {last}"
        last = sequence
        while not waited(card, sequence):
            pass
        # The first generation's are unmapped with their views.
        [view.close() for view in card.kept if isinstance(view, mmap.mmap)]
    signal.setitimer(signal.ITIMER_REAL, 0)


def times():
    """Times that interrupts write are seen in memory of the driver's, which the program maps by its handle."""
    class Interrupt(ctypes.Structure):
        _fields_ = [("counters", ctypes.c_uint64), ("target", ctypes.c_uint64), ("context", ctypes.c_uint32),
                    ("flags", ctypes.c_uint32), ("microseconds", ctypes.c_uint64), ("place", ctypes.c_uint64),
                    ("times", ctypes.c_uint64), ("time", ctypes.c_uint64)]

    card = Card()
    handle = card.memory(op=6, elements=600)
    assert refused(lambda: mmap.mmap(card.file, PAGE, offset=handle), errno.EINVAL)
    seen = mmap.mmap(card.file, 2 * PAGE, offset=handle)
    assert refused(lambda: mmap.mmap(card.file, 2 * PAGE, offset=handle), errno.EINVAL)
    # A buffer that the card can write, with a counter in it, and what waits for the counter to be one.
    counters = request(card.file, 0x41, Buffer(op=0, size=PAGE, flags=1)).handle
    address = request(card.file, 0x41, Buffer(counters, op=2, flags=2)).handle
    register = 0x2 | 0x10 | 0x20 | 50 << 20
    request(card.file, 0x43, Interrupt(counters=counters, target=1, flags=register, times=handle, time=599))
    assert seen[:] == bytes(2 * PAGE)
    for target, value in ((address, 1), (0xFFF077FFFFFF0000, 50)):
        assert card.wait(card.submit(0, [value | 0x3 << 56, target])) == 0
    written = int.from_bytes(seen[599 * 8:600 * 8], "little")
    assert 0 < written <= time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    seen.close()
    card.close()


def asleep():
    """Sleeps in a wait until it is killed. Needs fault=hang:1."""
    card = Card()
    card.eventfd()
    sequence = card.nothing()
    print("waiting", os.getpid(), flush=True)
    card.wait(sequence, 60_000_000)


def sees_reset():
    """Whether the card's control node, which any number of processes may open, tells of a reset soon."""
    control = Card("/dev/accel/accel_controlD0", control=True)
    until = time.monotonic() + 60
    while int.from_bytes(control.info(9, 8)[:4], "little") == 0:
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def told():
    """A program that wants to be told of errors is told, lets go, and lives. Needs fault=hang:1."""
    observer = os.fork()
    if observer == 0:
        os._exit(0 if sees_reset() else 1)
    card = Card()
    counter = card.eventfd()
    sequence = card.nothing(timeout=1)
    assert select.select([counter], [], [], 60)[0], "it was not told"
    assert card.events() != 0
    assert refused(lambda: card.wait(sequence), errno.EBUSY, errno.EIO, errno.ETIMEDOUT)
    [view.close() for view in card.kept if isinstance(view, mmap.mmap)]
    card.close()
    opened("/dev/accel/accel0").close()
    assert os.waitpid(observer, 0)[1] == 0, "another process did not see the reset"


def untold():
    """A program that does not want to be told is killed. Needs fault=reset:1."""
    card = Card()
    card.nothing()
    time.sleep(30)


def left():
    """The thread that opened the card has ended when the card is reset, so that the kernel finds no thread to kill.

    Needs fault=reset:1, speed=20."""
    cards = []
    thread = threading.Thread(target=lambda: cards.append(Card()))
    thread.start()
    thread.join()
    cards[0].nothing()
    until = time.monotonic() + 60
    while cards[0].info(4, 8)[0] != 1:
        assert time.monotonic() < until, "no reset"
        time.sleep(0.001)
    # Longer than programs get.
    time.sleep(0.5)
    [view.close() for view in cards[0].kept if isinstance(view, mmap.mmap)]
    cards[0].close()
    opened("/dev/accel/accel0").close()


def again():
    """A card can be opened as soon as a close has returned, also with work in flight. Needs fault=hang:20."""
    begin = time.monotonic()
    for number in range(30):
        card = Card()
        sequence = card.nothing()
        if number != 19:
            card.wait(sequence)
        [view.close() for view in card.kept if isinstance(view, mmap.mmap)]
        card.close()
    assert time.monotonic() - begin < 60


def many():
    """More mappings than the supervisor may have descriptors, and a request behind them."""
    card = Card()
    addresses = [card.host(size=PAGE)[1] for _ in range(1000)]
    card.wait(card.nothing())
    for address in addresses:
        card.unmap(address)


def send(connection, file):
    socket.send_fds(connection, [b"f"], [file])


def lend(descriptor, length):
    """The exporter: fills a card's memory, passes a dma-buf of it, and waits to be killed."""
    connection = socket.socket(fileno=int(descriptor))
    card = Card("/dev/accel/accel0")
    device = card.device()
    card.down(b"lent" * (SIZE // 4), device)
    send(connection, card.export(device, int(length)))
    connection.recv(1)
    card.down(b"anew" * (SIZE // 4), device)
    connection.send(b"w")
    time.sleep(60)


def share():
    """Two processes with a card each; one exports, is killed, and its memory lives on in the other's card.

    Needs register=on."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, __file__, "lend", str(theirs.fileno()), str(SIZE)]
    other = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    theirs.close()
    buffer = socket.recv_fds(ours, 1, 1)[1][0]
    # The number of an open card opens no card.
    assert refused(lambda: Card("/dev/accel/accel0"), errno.EBUSY)
    card = Card("/dev/accel/accel1")
    counter = card.eventfd()
    address = card.memory(op=99, a=buffer, b=SIZE)
    assert card.up(address) == b"lent" * (SIZE // 4)
    # The very memory: what the other card writes is there.
    ours.send(b"n")
    ours.recv(1)
    assert card.up(address) == b"anew" * (SIZE // 4)
    other.kill()
    assert other.wait() == -signal.SIGKILL
    assert card.up(address) == b"anew" * (SIZE // 4)
    # The dma-buf, and the card that it was imported to, hold the card that it is of.
    time.sleep(0.1)
    assert refused(lambda: Card("/dev/accel/accel0"), errno.EBUSY, errno.EAGAIN)
    os.close(buffer)
    assert card.up(address) == b"anew" * (SIZE // 4)
    card.unmap(address)
    opened("/dev/accel/accel0").close()
    # Its neighbour was reset or not: this card never noticed.
    assert not select.select([counter], [], [], 0)[0] and card.events() == 0
    card.close()


def numbers():
    """Finds the address of each card by the number of its node, as the vendor's library does. Needs abi=old."""
    for card in range(2):
        for name in (f"accel{card}", f"accel_controlD{card}"):
            file = os.open(f"/dev/accel/{name}", os.O_RDWR)
            number = os.fstat(file).st_rdev
            # A control node has the number behind its card's.
            with open(f"/sys/dev/char/{os.major(number)}:{os.minor(number) & ~1}/pci_addr") as address:
                assert address.read() == f"0000:{0x10 + card:02x}:00.0\n", name
            os.close(file)
            # The same without opening a node.
            with open(f"/sys/class/accel/{name}/dev") as number:
                major, minor = map(int, number.read().split(":"))
            with open(f"/sys/dev/char/{major}:{minor & ~1}/pci_addr") as address:
                assert address.read() == f"0000:{0x10 + card:02x}:00.0\n", name
            assert refused(lambda: open(f"/sys/class/accel/accel_controlD{card}/pci_addr"), errno.ENOENT)


class Debug(ctypes.Structure):
    _fields_ = [("input", ctypes.c_uint64), ("output", ctypes.c_uint64), ("sizes", ctypes.c_uint32 * 2),
                ("op", ctypes.c_uint32), ("register", ctypes.c_uint32), ("enable", ctypes.c_uint32),
                ("context", ctypes.c_uint32)]


def doors():
    """Opens and closes: twice, without a request, with debugging left on, by duplicates, and control nodes beside."""
    path = "/dev/accel/accel0"
    os.close(os.open(path, os.O_RDWR))
    card = opened(path)
    assert refused(lambda: os.open(path, os.O_RDWR), errno.EBUSY)
    control = [Card("/dev/accel/accel_controlD0", control=True) for _ in range(3)]
    assert all(node.info(4, 8) == bytes(8) for node in control), "the card is operational for all"
    for _ in range(2):
        request(card.file, 0x45, Debug(op=7, enable=1))
        assert refused(lambda: request(card.file, 0x45, Debug(op=7, enable=1)), errno.EFAULT)
        card.close()
        card = opened(path)
    again = os.dup(card.file)
    card.close()
    assert refused(lambda: os.open(path, os.O_RDWR), errno.EBUSY)
    card.file = again
    assert card.wait(card.nothing()) == 0
    # What is mapped of it keeps it open as well.
    [view.close() for view in card.kept if isinstance(view, mmap.mmap)]
    card.close()
    opened(path).close()
    for node in control:
        node.close()


def asks():
    """Every question, of the card and of its control node, while another process is at work on it."""
    card = Card()
    address = card.device()
    control = Card("/dev/accel/accel_controlD0", control=True)
    worker = os.fork()
    if worker == 0:
        for _ in range(50):
            card.down(b"busy" * (SIZE // 4), address)
        os._exit(0)
    answered = {}
    for name, file in (("card", card), ("control", control)):
        for op in range(48):
            if op in (28, 29):
                continue
            try:
                answered[name, op] = file.info(op, 4096)
            except OSError as error:
                assert error.errno in (errno.EINVAL, errno.EOPNOTSUPP), (name, op, error)
    assert os.waitpid(worker, 0)[1] == 0
    common = {op for name, op in answered if name == "control"}
    everything = set(range(5)) | set(range(6, 19)) | set(range(21, 27)) | set(range(31, 35)) | set(range(36, 39))
    assert common == everything, (sorted(everything - common), sorted(common - everything))
    assert {op for name, op in answered if name == "card"} == everything | {30}
    # Some of what they say: work was done, power is taken, and the two nodes are of one card.
    assert answered["card", 0] == answered["control", 0]
    assert int.from_bytes(control.info(12, 24)[8:16], "little") > 0, "bytes went over the bus"
    power = int.from_bytes(control.info(17, 8), "little")
    energy = int.from_bytes(control.info(15, 8), "little")
    assert power > 0 and energy > 0
    for clock in range(10):
        assert any(control.info(16, 8, clock)), clock
    assert refused(lambda: control.info(16, 8, 12), errno.EINVAL)
    control.close()
    card.close()


def full():
    """Takes device memory until there is none, gives it back in another order, and takes as much again.

    Needs the second generation."""
    card = Card()
    page = 768 << 20
    counts = []
    for contiguous in (0, 1):
        taken = []
        while True:
            try:
                handle = card.memory(op=0, a=page, flags=contiguous)
            except OSError as error:
                assert error.errno == errno.ENOMEM, error
                break
            taken.append((handle, card.memory(op=2, b=handle)))
        counts.append(len(taken))
        first, last = taken[0], taken[-1]
        content = os.urandom(SIZE)
        card.down(content, last[1] + page - SIZE)
        card.down(bytes(SIZE), first[1])
        assert card.up(last[1] + page - SIZE) == content
        assert refused(lambda: card.memory(op=1, a=first[0]), errno.EINVAL), "it is mapped"
        for handle, address in taken[::2] + taken[1::2]:
            card.unmap(address)
            card.memory(op=1, a=handle)
        assert refused(lambda: card.memory(op=1, a=first[0]), errno.EINVAL), "it is gone"
    assert counts[0] == counts[1] > 3, counts
    card.close()


def decides():
    """Lists of commands, predicates and fences, by packets alone. Needs the second generation."""
    card = Card()
    memory, mapped = card.host(size=5 * PAGE)
    # What is loaded begins at a multiple of 128.
    start = -mapped % PAGE
    address = mapped + start

    def long(word, value, predicate=0):
        return [(0x83 << 56 if not predicate else 0x83 << 56 | predicate << 32) | value, address + word]

    def write(place, words):
        content = b"".join(word.to_bytes(8, "little") for word in words)
        ctypes.memmove(ctypes.addressof(memory) + start + place, content, len(content))
        return len(content)

    # Ten buffers, each of which adds its word, says which is next, and has the list go on.
    for number in range(10):
        words = long(0x100 + 4 * number, number + 1)
        if number < 9:
            words += long(0, number + 1) + [0x8E << 56, address, address + 0x1000]
        size = write(0x2000 + 0x80 * number, words)
        write(0x1000 + 16 * number, [0x85 << 56 | 1 << 37 | size, address + 0x2000 + 0x80 * number])
    assert card.wait(card.submit(0, long(0, 0) + [0x8E << 56, address, address + 0x1000])) == 0
    words = [int.from_bytes(memory.raw[start + 0x100 + 4 * at:][:4], "little") for at in range(10)]
    assert words == list(range(1, 11)), words
    # The tenth predicate is true, and the eleventh is not.
    write(0x800 + 40, [1])
    load = [0x8F << 56 | 1 << 8, address + 0x800]
    assert card.wait(card.submit(0, load + long(0x200, 7, 10) + long(0x204, 7, 11))) == 0
    assert memory.raw[start + 0x200:start + 0x208] == bytes([7, 0, 0, 0, 0, 0, 0, 0])
    card.unmap(mapped)
    card.close()


def late():
    """Commands that use freed memory: the program is told, the work does not end well, and the card comes back."""
    card = Card()
    counter = card.eventfd()
    memory, address = card.host()
    device = card.device()
    card.unmap(address)
    sequence = card.copy(0, address, device)
    assert select.select([counter], [], [], 60)[0], "it was not told"
    assert card.events() & 1 << 8, "an access to what is not mapped"
    # On the first generation the work stands still.
    status = []
    is_refused = refused(lambda: status.append(card.wait(sequence, 1_000_000)), errno.EIO, errno.EBUSY)
    assert is_refused or status == [1], status
    [view.close() for view in card.kept if isinstance(view, mmap.mmap)]
    card.close()
    card = opened("/dev/accel/accel0")
    assert card.wait(card.nothing()) == 0
    # What is on its way when a card is closed ends with it.
    card.nothing()
    [view.close() for view in card.kept if isinstance(view, mmap.mmap)]
    card.close()
    opened("/dev/accel/accel0").close()
    del memory


def objects():
    """Buffer objects of a Cloud AI 100: made, mapped, kept while they are mapped, and refused by the kernel's rules."""
    file = os.open("/dev/accel/accel0", os.O_RDWR | os.O_CLOEXEC)
    assert driver(file) == "qaic"

    class Create(ctypes.Structure):
        _fields_ = [("size", ctypes.c_uint64), ("handle", ctypes.c_uint32), ("pad", ctypes.c_uint32)]

    class Map(ctypes.Structure):
        _fields_ = [("handle", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("offset", ctypes.c_uint64)]

    class Close(ctypes.Structure):
        _fields_ = [("handle", ctypes.c_uint32), ("pad", ctypes.c_uint32)]

    def create(size):
        handle = request(file, 0x41, Create(size)).handle
        return handle, request(file, 0x42, Map(handle)).offset

    first, offset = create(5000)
    second, other = create(PAGE)
    view = mmap.mmap(file, 2 * PAGE, offset=offset)
    view[:4] = b"here"
    # An object may be mapped any number of times, but no further than it goes.
    again = mmap.mmap(file, PAGE, offset=offset)
    assert again[:4] == b"here"
    again.close()
    assert refused(lambda: mmap.mmap(file, 3 * PAGE, offset=offset), errno.EINVAL)
    assert refused(lambda: mmap.mmap(file, PAGE, offset=offset + (1 << 34)), errno.EINVAL)
    stranger = os.open("/dev/accel/accel0", os.O_RDWR)
    assert refused(lambda: mmap.mmap(stranger, PAGE, offset=other), errno.EACCES)
    fcntl.ioctl(file, 0x40086409, Close(first))
    assert view[:4] == b"here", "an object lives while it is mapped"
    assert refused(lambda: mmap.mmap(file, PAGE, offset=offset), errno.EINVAL)
    view.close()
    assert refused(lambda: request(file, 0x41, Create(0)), errno.EINVAL)
    with open("/sys/class/accel/accel0/dbc0_state") as state:
        assert state.read() == "0\n"
    with open("/sys/module/qaic/parameters/control_resp_timeout_s") as parameter:
        assert parameter.read() == "60\n"


def command(file, *words):
    """What a Cloud AI 100 answers to a command, which the kernel only passes on."""
    length = 8 + 4 * len(words)
    message = ctypes.create_string_buffer(PAGE)
    struct.pack_into(f"<{len(words) + 2}I", message, 0, 1, length, *(word & 0xFFFFFFFF for word in words))
    argument = bytearray(struct.pack("<IIQ", length, 1, ctypes.addressof(message)))
    fcntl.ioctl(file, 0xC0106440, argument)
    length = struct.unpack_from("<I", argument)[0]
    return struct.unpack_from(f"<{(length - 8) // 4}I", message, 8)


def resources(file, group=-1):
    """The status of the question for a group's resources, how many cores are free, and the other numbers."""
    answer = command(file, 32, os.getpid(), group, 0, 0, 0)
    return ctypes.c_int32(answer[12]).value, answer[5] >> 24, answer[2:12]


def set_apart(file, cores):
    """A group with so many cores, a channel and some memory, as the vendor's tool makes it: its status and number."""
    answer = command(file, 28, os.getpid(), -1, cores, 10, 20, 1, 0, 1 << 20, 0, 0, 0, 1 << 20, 0, 1, 0, 0, 0)
    return struct.unpack("<2i", struct.pack("<2I", *answer[1:3]))


def groups():
    """Resources of a Cloud AI 100 that a process sets apart come back when it is killed."""
    card = os.open("/dev/accel/accel0", os.O_RDWR | os.O_CLOEXEC)
    whole = resources(card)
    assert whole[:2] == (0, 16), whole
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        file = os.open("/dev/accel/accel0", os.O_RDWR | os.O_CLOEXEC)
        status, group = set_apart(file, 4)
        assert status == 0 and resources(file, group)[:2] == (0, 4)
        assert set_apart(file, 13)[0] == -13, "as many cores are not left"
        os.write(writer, struct.pack("<i", group))
        while True:
            time.sleep(1)
    [group] = struct.unpack("<i", os.read(reader, 4))
    assert resources(card)[1] == 12 and resources(card, group)[0] == -9, "it is another's"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    end = time.monotonic() + 60
    while resources(card) != whole:
        assert time.monotonic() < end, resources(card)
    assert resources(card, group)[0] == -11


def attack():
    """Processes whose threads ask a Cloud AI 100 for anything, at once, killed at any moment.

    The card is whole for the next one."""

    def hammer(files, address, seed):
        draw = random.Random(seed)
        known = [0, 0, 1, 1, 2, 3, 8, 16, 64, 4096, 0xFFFFFFFF, address & 0xFFFFFFFF]
        word = lambda: draw.choice([*known, draw.getrandbits(32)])
        views = []
        while True:
            file = draw.choice(files)
            try:
                if draw.random() < 0.1:
                    length = draw.choice([1, 2, 3]) * PAGE
                    views.append(mmap.mmap(file, length, offset=(1 << 32) + draw.randrange(8) * PAGE))
                    views[-1][:8] = bytes(8)
                    views = views[-4:]
                elif draw.random() < 0.1:
                    os.close(os.dup(file))
                    os.close(os.open("/dev/accel/accel0", os.O_RDWR))
                else:
                    number, size = draw.choice([9, *range(0x40, 0x4A)]), draw.choice([8, 16, 24, 32, 64])
                    words = [word() for _ in range(size // 4)]
                    # Where a request has an address it is often one that is there.
                    for at in range(2, len(words) - 1, 2):
                        if draw.random() < 0.5:
                            words[at : at + 2] = address & 0xFFFFFFFF, address >> 32
                    if number == 0x46:
                        words[1] = draw.choice([1, 5])
                    argument = bytearray(struct.pack(f"<{len(words)}I", *words))
                    fcntl.ioctl(file, 3 << 30 | size << 16 | ord("d") << 8 | number, argument)
            except OSError:
                pass

    def victim(seed):
        memory = mmap.mmap(-1, 1 << 16)
        memory[:] = random.Random(seed).randbytes(1 << 12) * 16
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        files = [os.open("/dev/accel/accel0", os.O_RDWR) for _ in range(2)]
        for thread in range(4):
            threading.Thread(target=hammer, args=(files, address, seed + thread)).start()

    draw = random.Random(1)
    for turn in range(5):
        victims = []
        for number in range(3):
            process = os.fork()
            if process == 0:
                victim(turn * 100 + number * 10)
                while True:
                    time.sleep(1)
            victims.append(process)
        for process in victims:
            time.sleep(draw.random() * 0.1)
            os.kill(process, signal.SIGKILL)
        for process in victims:
            assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    objects()


class Tenstorrent:
    """A Tenstorrent card. Its requests have no sizes in their numbers."""

    def __init__(self, path="/dev/tenstorrent/0", flags=0):
        self.file = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags)

    def ask(self, number, layout, *values):
        argument = bytearray(struct.pack("<" + layout, *values))
        fcntl.ioctl(self.file, 0xFA00 | number, argument)
        return struct.unpack("<" + layout, argument)

    def lock(self, how, index=0):
        return self.ask(8, "IIB3xB3x", 4, how, index, 0)[3]

    def window(self):
        return self.ask(11, "QQIIQQQ", 2 << 20, 0, 0, 0, 0, 0, 0)[2]

    def close(self):
        os.close(self.file)


def users(number=0):
    with open(f"/proc/driver/tenstorrent/{number}/pids") as file:
        return [int(line) for line in file]


def lends():
    """Memory of the host for a Tenstorrent card, windows as dma-bufs, and what the driver refuses."""
    card, other = Tenstorrent(), Tenstorrent("/dev/tenstorrent/1")
    assert card.ask(0, "IIHHHHHHHH", 20, *[0] * 9)[2:4] == (0x1E52, 0xB140)
    assert card.ask(5, "IIIBBBB", 12, *[0] * 6)[2:5] == (2, 2, 10)
    # Buffers of the driver are mapped like memory, each once by its number.
    buffers = {}
    for index in (0, 7, 255):
        made = card.ask(3, "IBBH2QQQIIQQ", 3 * PAGE, index, 2, *[0] * 9)
        buffers[index] = mmap.mmap(card.file, 3 * PAGE, offset=made[7])
        buffers[index][:] = bytes([index]) * 3 * PAGE
        assert made[8] == 3 * PAGE and made[10] >> 58 == 4, "an address on the card's network"
    assert all(buffers[index][:] == bytes([index]) * 3 * PAGE for index in buffers)
    assert refused(lambda: card.ask(3, "IBBH2QQQIIQQ", PAGE, 7, 0, *[0] * 9), errno.EINVAL)
    assert refused(lambda: card.ask(3, "IBBH2QQQIIQQ", PAGE + 1, 8, 0, *[0] * 9), errno.EINVAL)
    assert refused(lambda: mmap.mmap(card.file, 4 * PAGE, offset=made[7]), errno.EINVAL)
    # Pages of the process, each range once.
    memory = mmap.mmap(-1, 16 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    pin = lambda flags, place, size: card.ask(7, "IIQQQQ", 16, flags, place, size, 0, 0)
    unpin = lambda place, size: card.ask(10, "QQQ", place, size, 0)
    addresses = [pin(2, address + at * PAGE, PAGE)[4:] for at in range(8)]
    assert len(set(addresses)) == 8
    assert refused(lambda: pin(0, address, PAGE), errno.EEXIST)
    assert refused(lambda: pin(0, address + 1, PAGE), errno.EINVAL)
    assert refused(lambda: pin(16, address, PAGE), errno.EINVAL)
    assert refused(lambda: pin(0, PAGE, PAGE), errno.EFAULT)
    assert refused(lambda: unpin(address, 2 * PAGE), errno.EINVAL)
    unpin(address, PAGE)
    assert refused(lambda: unpin(address, PAGE), errno.EINVAL)
    # Three buffers and eight ranges: there are sixteen regions for the network.
    for at in range(8, 14):
        pin(4, address + at * PAGE, PAGE)
    assert refused(lambda: pin(2, address + 14 * PAGE, PAGE), errno.ENOSPC)
    assert pin(0, address + 14 * PAGE, PAGE)[4], "without the network there is no such limit"
    # Another card's region, which has to be another card's.
    assert card.ask(9, "IIIIIIQQ", other.file, 4, 0, PAGE, 0, 0, 0, 0)[6]
    for peer, bar, error in ((card.file, 0, errno.EINVAL), (other.file, 1, errno.EINVAL), (999, 0, errno.EBADF)):
        assert refused(lambda: card.ask(9, "IIIIIIQQ", peer, bar, 0, PAGE, 0, 0, 0, 0), error)
    # A window as a dma-buf: freed when that is closed, and no reset before.
    window = card.window()
    shared = card.ask(16, "IIIiQQ", 32, 0, window, 0, 0, 0)[3]
    assert fcntl.fcntl(shared, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    card.ask(12, "I", window)
    assert card.window() != window
    assert refused(lambda: card.ask(6, "IIII", 8, 4, 0, 0), errno.EBUSY)
    os.close(shared)
    assert card.window() == window
    assert refused(lambda: other.ask(16, "IIIiQQ", 32, 0, window, 0, 0, 0), errno.EPERM)
    # A wrong size, a wrong number, an address of nothing, and a descriptor of another file.
    assert refused(lambda: card.ask(16, "IIIiQQ", 31, 0, window, 0, 0, 0), errno.EINVAL)
    assert refused(lambda: card.ask(99, "I", 0), errno.EINVAL) and refused(lambda: card.ask(1, "I", 0), errno.EINVAL)
    c = ctypes.CDLL(None, use_errno=True)
    for argument in (8, 1 << 62):
        assert c.ioctl(card.file, ctypes.c_ulong(0xFA00), ctypes.c_void_p(argument)) == -1
        assert ctypes.get_errno() == errno.EFAULT
    assert refused(lambda: card.ask(0, "IIHHHHHHHH", 1 << 31, *[0] * 9), errno.EFAULT)
    with open("/dev/null") as null:
        assert refused(lambda: fcntl.ioctl(null.fileno(), 0xFA00, bytearray(24)), errno.ENOTTY)
    card.close()
    assert refused(lambda: card.ask(0, "IIHHHHHHHH", 20, *[0] * 9), errno.EBADF)
    # What is mapped keeps the file open, and the buffers.
    assert users() == [os.getpid()] and buffers[7][5] == 7
    [view.close() for view in buffers.values()]
    assert users() == []


def holders():
    """Who has a Tenstorrent card: lists, locks that end with their process, and files that are alone."""
    cards = [Tenstorrent() for _ in range(3)]
    assert users() == [os.getpid()] * 3 and users(1) == []
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        own = Tenstorrent()
        assert own.lock(0, 5) == 1 and own.lock(2, 5) == 3
        own.window()
        os.write(writer, b"x")
        time.sleep(60)
    os.read(reader, 1)
    # The files of before the fork are the parent's still.
    assert users() == [child] + [os.getpid()] * 3
    assert cards[0].lock(0, 5) == 0 and cards[0].lock(2, 5) == 2 and cards[0].lock(1, 5) == 0
    begun = time.monotonic()
    threading.Timer(0.1, lambda: os.kill(child, signal.SIGKILL)).start()
    assert cards[0].lock(3, 5) == 1 and time.monotonic() - begun >= 0.1, "it waits for the process's end"
    os.waitpid(child, 0)
    assert users() == [os.getpid()] * 3
    # A signal whose handler lets calls go on does not end a request that waits, and another's does.
    signal.signal(signal.SIGALRM, lambda *_: None)
    # They come again and again, since the first may come before the request.
    assert not signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)[0]
    assert refused(lambda: cards[1].lock(3, 5), errno.EINTR)
    signal.siginterrupt(signal.SIGALRM, False)
    threading.Timer(0.2, lambda: cards[0].lock(1, 5)).start()
    assert cards[1].lock(3, 5) == 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    # A file that is alone.
    alone = os.O_EXCL
    assert refused(lambda: Tenstorrent(flags=alone | os.O_NONBLOCK), errno.EAGAIN)
    threading.Timer(0.1, lambda: [card.close() for card in cards]).start()
    only = Tenstorrent(flags=alone)
    assert refused(lambda: Tenstorrent(flags=os.O_NONBLOCK), errno.EAGAIN)
    threading.Timer(0.1, only.close).start()
    Tenstorrent().close()
    assert users() == []
    # A lock of a file from before a reset.
    one, other = Tenstorrent(), Tenstorrent()
    assert one.lock(0) == 1
    threading.Timer(0.1, lambda: one.ask(6, "IIII", 8, 4, 0, 0)).start()
    assert refused(lambda: other.lock(3), errno.ENODEV)
    assert refused(lambda: other.ask(0, "IIHHHHHHHH", 20, *[0] * 9), errno.ENODEV)
    assert refused(lambda: one.window(), errno.ENODEV) and one.ask(6, "IIII", 8, 6, 0, 0)[3] == 0
    one.window()
    # Its power: sizes and reserved parts count.
    power = struct.pack("<IIBBH14H", 40, 0, 0, 4, 15, *[0] * 14)
    fcntl.ioctl(one.file, 0xFA0F, bytearray(power))
    for wrong in (power[:8] + b"\1" + power[9:], b"\0" + power[1:]):
        assert refused(lambda: fcntl.ioctl(one.file, 0xFA0F, bytearray(wrong)), errno.EINVAL)


def lent():
    """A window as a dma-buf, whoever has it: no process maps it, and window and card wait for the last one."""
    card = Tenstorrent()
    window = card.window()
    export = lambda offset=0, size=0: card.ask(16, "IIIiQQ", 32, 0, window, 0, offset, size)[3]
    reset = lambda: card.ask(6, "IIII", 8, 4, 0, 0)
    part = export(PAGE, 2 * PAGE)
    assert os.lseek(part, 0, os.SEEK_END) == 2 * PAGE == os.fstat(part).st_size
    c = ctypes.CDLL(None, use_errno=True)
    c.mmap.restype = ctypes.c_void_p
    for protection in (1, 2, 3):
        place = c.mmap(None, ctypes.c_size_t(PAGE), protection, 1, part, ctypes.c_long(0))
        assert place == ctypes.c_void_p(-1).value and ctypes.get_errno() == errno.EINVAL, protection
    # With no descriptor left there is none, and no export.
    kept = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (part + 1, kept[1]))
    assert refused(export, errno.EMFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, kept)
    # The file that had the window is closed, and a child that has the dma-buf is killed.
    child = os.fork()
    if child == 0:
        signal.pause()
    os.close(part)
    card.close()
    card = Tenstorrent()
    assert refused(reset, errno.EBUSY) and card.window() != window
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert card.window() == window
    # In a socket that nobody reads.
    ours, theirs = socket.socketpair()
    part = export()
    socket.send_fds(ours, [b"1"], [part])
    os.close(part)
    assert refused(reset, errno.EBUSY)
    theirs.close()
    ours.close()
    assert reset()[3] == 0


def telemetry(board):
    """What the file system says of a Tenstorrent card."""
    of_both = lambda name: {open(f"/sys/class/tenstorrent/tenstorrent!{at}/device/{name}").read() for at in (0, 1)}
    assert len(of_both("tt_serial")) == len(of_both("tt_asic_id")) == 2, "no two boards have one number"
    card = os.path.realpath("/sys/class/tenstorrent/tenstorrent!0/device")
    read = lambda name: open(f"{card}/{name}").read()
    assert read("tt_card_type") == board + "\n" and int(read("tt_aiclk")) >= 800
    assert int(read("tt_serial"), 16) >> 36 in (0x40, 0x18) and read("tt_fw_bundle_ver").count(".") == 3
    assert int(read("tt_heartbeat")) >= 1 and len(read("tt_asic_id")) == 17
    # What the firmware does not measure is not there.
    assert not os.path.exists(f"{card}/tt_arcclk") and not os.path.exists(f"{card}/tt_therm_trip_count")
    sensors = [name for name in os.listdir("/sys/class/hwmon") if card in os.path.realpath(f"/sys/class/hwmon/{name}")]
    assert len(sensors) == 1 and os.listdir(f"{card}/hwmon") == sensors
    assert os.path.realpath(f"/sys/class/hwmon/{sensors[0]}/device") == card
    with open(f"/sys/class/hwmon/{sensors[0]}/name") as name:
        assert name.read() in ("blackhole\n", "wormhole\n")
    sensor = lambda file: open(f"{card}/hwmon/{sensors[0]}/{file}").read()
    assert sensor("power1_label").startswith("power")
    for kind in ("in0", "curr1", "temp1", "power1"):
        assert 0 < int(sensor(f"{kind}_input")) < int(sensor(f"{kind}_max")), kind
    assert 0 < int(sensor("temp1_input")) < 100_000, "thousandths of a degree"
    with open("/sys/module/tenstorrent/version") as version:
        assert version.read() == "2.10.0\n"
    assert os.stat(f"{card}/resource4").st_size >= 1 << 25
    assert "0\n" not in read("iommu_group/type")


def damaged(kind):
    """Processes that ask a card for anything with arguments of any length, whose descriptors come and go, that fork,
    and that are killed between two requests. The card is whole for the next program."""
    node = "/dev/tenstorrent/0" if kind == "tenstorrent" else "/dev/accel/accel0"

    def ask_anything(file, draw):
        if kind == "qaic" and draw.random() < 0.3:
            if not refused(lambda: set_apart(file, 1), errno.EBADF, errno.EINTR):
                fcntl.ioctl(file, 0xC0106441, bytearray(struct.pack("<QQ", 1 << 20, 0)))
            return
        number, size = draw.randrange(0x40, 0x49), draw.choice([0, 1, 8, 23, 24, 32, 40, 48, 64, 4096])
        code = 3 << 30 | size << 16 | ord("d") << 8 | number
        if kind == "tenstorrent":
            code = 0xFA << 8 | draw.randrange(18)
        word = lambda: draw.choice([0, 0, 1, 2, 8, 16, 24, 32, 40, 4096, 1 << 21, 1 << 31, draw.getrandbits(32)])
        # The first word may be a length or a count, which this program has room for.
        length = draw.choice([0, 1, 8, 16, 20, 24, 32, 40, 48, 64, 1024])
        argument = bytearray(struct.pack("<256I", length, *(word() for _ in range(255))) * 32)
        try:
            fcntl.ioctl(file, code, argument)
        except OSError:
            pass

    def victim(seed):
        draw = random.Random(seed)
        while True:
            try:
                file = os.open(node, os.O_RDWR)
            except OSError:
                time.sleep(0.001)
                continue
            for _ in range(draw.randrange(40)):
                ask_anything(draw.choice([file, os.dup(file)]), draw)
                if draw.random() < 0.05 and os.fork() == 0:
                    ask_anything(file, draw)
                    os._exit(0)
            os.closerange(3, 4096)
            assert refused(lambda: fcntl.ioctl(file, 0xFA00, bytearray(4096)), errno.EBADF)

    def windows():
        """How many windows a Tenstorrent card has to give."""
        card, count = Tenstorrent(), 0
        while not refused(lambda: card.window(), errno.ENOMEM):
            count += 1
        os.close(card.file)
        return count

    free = set()
    whole = windows() if kind == "tenstorrent" else None
    if kind == "qaic":
        idle = os.open(node, os.O_RDWR | os.O_CLOEXEC)
        whole = resources(idle)
    draw = random.Random(1)
    for turn in range(4):
        victims = []
        for number in range(3):
            child = os.fork()
            if child == 0:
                os.setpgid(0, 0)
                victim(100 * turn + number)
            victims.append(child)
        time.sleep(draw.uniform(0.1, 0.4))
        for child in victims:
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:
                os.kill(child, signal.SIGKILL)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL, "it ended by itself"
        if kind == "tenstorrent":
            assert windows() == whole
            continue
        if kind == "qaic":
            end = time.monotonic() + 60
            while resources(idle) != whole:
                assert time.monotonic() < end, resources(idle)
            objects()
            continue
        card = opened(node)
        content = os.urandom(SIZE)
        free.add(card.info(2, 16))
        target = card.device()
        card.down(content, target)
        assert card.up(target) == content
        # A mapping of commands holds the card open.
        card.kept.clear()
        card.close()
    assert len(free) <= 1, "as much memory is free as before"


def debugs():
    """Words at device addresses by the files of debugfs, whose every read and write the driver answers."""
    card = Card("/dev/accel/accel1")
    root = "/sys/kernel/debug"
    [folder] = [f"{root}/{kind}/{name}" for kind in ("accel", "habanalabs") if kind in os.listdir(root)
                for name in os.listdir(f"{root}/{kind}") if name in ("0000:11:00.0", "hl1")]
    assert {"addr", "data32", "data64", "clk_gate"} <= set(os.listdir(folder))
    assert stat.S_IMODE(os.stat(f"{folder}/data32").st_mode) == 0o644 and magic(folder + "/addr") == 0x64626720
    at, word, long = [os.open(f"{folder}/{name}", flags) for name, flags in
                      (("addr", os.O_WRONLY), ("data32", os.O_RDWR), ("data64", os.O_RDWR | os.O_CLOEXEC))]
    memory, address = card.host(b"\x11\x22\x33\x44\x55")
    assert os.write(at, hex(address).encode() + b"\0") == len(hex(address)) + 1
    assert os.pread(word, 64, 0) == b"0x44332211\n" and os.pread(long, 64, 0) == b"0x0000005544332211\n"
    assert os.pwrite(word, b"0xdeadbeef", 0) == 10 and memory.raw[:5] == b"\xef\xbe\xad\xde\x55"
    # A read has a position, and a write has none.
    assert os.read(word, 4) == b"0xde" and os.read(word, 64) == b"adbeef\n" and os.read(word, 64) == b""
    assert os.write(word, b"1") == 1 and os.lseek(word, 0, os.SEEK_SET) == 0 and os.read(word, 64) == b"0x00000001\n"
    # Languages, tools and children.
    with open(f"{folder}/data32") as file:
        assert file.read() == "0x00000001\n"
    with open(f"{folder}/addr", "w") as file:
        file.write(str(address + 4))
    shown = subprocess.run(["cat", f"{folder}/addr", f"{folder}/data32"], capture_output=True, check=True).stdout
    assert int(shown.split()[0], 16) == address + 4 and shown.split()[1] == b"0x00000055", shown
    child = os.fork()
    if child == 0:
        os._exit(0 if os.pread(word, 64, 0) == b"0x00000055\n" and os.write(word, b"7") == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0 and memory[4] == b"\7"
    # Rights, values, addresses.
    assert refused(lambda: os.read(at, 8), errno.EBADF) and refused(lambda: os.open(folder + "/x", 0), errno.ENOENT)
    reader = os.open(f"{folder}/data32", os.O_RDONLY)
    assert refused(lambda: os.write(reader, b"1"), errno.EBADF)
    assert refused(lambda: os.write(word, b"0x100000000"), errno.ERANGE)
    assert refused(lambda: os.write(word, b"much"), errno.EINVAL)
    os.write(at, hex(address + 2 * SIZE).encode())
    assert refused(lambda: os.pread(word, 64, 0), errno.EINVAL) and refused(lambda: os.write(long, b"1"), errno.EINVAL)
    # A duplicate elsewhere is no way to the card, and says so.
    assert refused(lambda: os.write(os.dup(at), b"0"), errno.EPERM)
    # There are only so many; closed ones are given again.
    more = []
    assert refused(lambda: [more.append(os.open(f"{folder}/addr", os.O_RDONLY)) for _ in range(1000)], errno.EMFILE)
    assert len(more) >= 32
    for file in more:
        os.close(file)
    for _ in range(200):
        os.close(os.open(f"{folder}/addr", os.O_RDONLY))
    # Other descriptors with such numbers are the system's.
    pipe = os.pipe()
    free = more[0]
    os.dup2(pipe[1], free)
    assert os.write(free, b"through") == 7 and os.read(pipe[0], 99) == b"through"
    with open(f"{folder}/clk_gate", "r+") as file:
        assert file.read() == "" and file.write("0") == 1


if __name__ == "__main__":
    arguments = [int(word, 16) if word.startswith("0x") else word for word in sys.argv[2:]]
    globals()[sys.argv[1]](*arguments)
    print(f"{sys.argv[1]} ok")
