# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

"""Takes results of the matrix engine from the vendor's simulator: writes random programs, and what became of them.

usage: engine.py LIBRARY KIND SEED COUNT > FILE
KIND is products, programs or threads, of a LIBRARY (libttsim.so) built for Blackhole, or wormhole, of one for that.

A file has cases, each a list of sections. A section is a letter, an address and a length as little-endian words, and
what the letter says: W as many bytes, which are written to the tile's memory; G a style, a format and a number, of
which as many elements are made and written; S nothing, but a core starts at the address, whose number is in place of
the length; R the hash (FNV-1a, 64 bits) of as many bytes, which are read when each core that started has written its
word at DONE. E ends a case, and N is a new Blackhole chip for the cases behind it, M a new Wormhole chip.
"""

import ctypes
import os
import random
import struct
import subprocess
import sys

# Where the host sees the chip's first region.
BASE = 1 << 32
DONE, CODE = 0x70000, 0x80000
LEFT, RIGHT, RESULT, DUMP = 0x20000, 0x40000, 0xA0000, 0x60000
B, T0, T1, T2 = range(4)

# Instructions: the opcode, and the lowest bit and width of each field.
ISA = {
    "NOP": (0x02, {}),
    "MOP": (0x01, {"mask_lo": (0, 16), "count1": (16, 7), "template": (23, 1)}),
    "MOP_CFG": (0x03, {"mask_hi": (0, 16)}),
    "REPLAY": (0x04, {"load": (0, 1), "exec": (1, 1), "count": (4, 6), "index": (14, 5)}),
    "ZEROACC": (0x10, {"imm10": (0, 10), "addr_mod": (14, 3), "use_dst32b": (18, 1), "mode": (19, 2)}),
    "ZEROSRC": (0x11, {"src": (0, 2), "both": (2, 1), "single": (3, 1)}),
    "MVMUL": (0x26, {"dst": (0, 10), "addr_mod": (14, 3), "flip": (22, 2)}),
    "CLEARDVALID": (0x36, {"flip": (22, 2)}),
    "SETRWC": (0x37, {"mask": (0, 4), "a": (6, 4), "b": (10, 4), "d": (14, 4), "cr": (18, 3), "flip": (22, 2)}),
    "INCRWC": (0x38, {"a": (6, 4), "b": (10, 4), "d": (14, 4), "cr": (18, 3)}),
    "PACR": (0x41, {"last": (0, 1), "read_intf_sel": (8, 4), "addr_mod": (15, 2)}),
    "UNPACR": (0x42, {"last": (0, 1), "flip_src": (6, 1), "multi": (7, 1), "ch0_z": (15, 2), "ch0_y": (17, 2),
                      "ch1_z": (19, 2), "ch1_y": (21, 2), "which": (23, 1)}),
    "UNPACR_NOP": (0x43, {"pop": (0, 2), "value": (2, 2), "stall": (5, 1), "dvalid": (8, 1), "which": (23, 1)}),
    "SETDMAREG": (0x45, {"half": (0, 7), "value": (8, 16)}),
    "SETADC": (0x50, {"value": (0, 18), "xyzw": (18, 2), "channel": (20, 1), "counters": (21, 3)}),
    "SETADCXY": (0x51, {"mask": (0, 4), "x0": (6, 3), "y0": (9, 3), "x1": (12, 3), "y1": (15, 3), "counters": (21, 3)}),
    "INCADCXY": (0x52, {"x0": (6, 3), "y0": (9, 3), "x1": (12, 3), "y1": (15, 3), "counters": (21, 3)}),
    "SETADCZW": (0x54, {"mask": (0, 4), "z0": (6, 3), "w0": (9, 3), "z1": (12, 3), "w1": (15, 3), "counters": (21, 3)}),
    "INCADCZW": (0x55, {"z0": (6, 3), "w0": (9, 3), "z1": (12, 3), "w1": (15, 3), "counters": (21, 3)}),
    "SETADCXX": (0x5e, {"x0": (0, 10), "x1": (10, 10), "counters": (21, 3)}),
    "STALLWAIT": (0xa2, {"condition": (0, 12), "block": (15, 9)}),
    "SEMINIT": (0xa3, {"mask": (2, 8), "value": (16, 4), "max": (20, 4)}),
    "SEMPOST": (0xa4, {"mask": (2, 8)}),
    "SEMGET": (0xa5, {"mask": (2, 8)}),
    "SEMWAIT": (0xa6, {"condition": (0, 2), "mask": (2, 8), "block": (15, 9)}),
    "WRCFG": (0xb0, {"index": (0, 11), "wide": (15, 1), "register": (16, 6)}),
    "SETC16": (0xb2, {"value": (0, 16), "index": (16, 8)}),
}

# Formats.
FP32, FP16, TF32, BF16, INT32, INT8 = 0, 1, 4, 5, 8, 14
BYTES = {FP32: 4, TF32: 4, INT32: 4, FP16: 2, BF16: 2, INT8: 1}


def word(name, **fields):
    opcode, places = ISA[name]
    value = opcode << 24
    for field, number in fields.items():
        low, width = places[field]
        assert 0 <= number < 1 << width, (name, field, number)
        value |= number << low
    return value


class Vendor:
    """A tile of the vendor's simulator. It ends the process if it refuses a program."""

    def __init__(self, library):
        self.library = ctypes.CDLL(library)
        for call in (self.library.libttsim_pci_mem_wr_bytes, self.library.libttsim_pci_mem_rd_bytes):
            call.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32]
        self.library.libttsim_init()
        self.is_wormhole = self.library.libttsim_pci_config_rd32(0, 0) >> 16 == 0x401E

    def put(self, address, data):
        self.library.libttsim_pci_mem_wr_bytes(address, data, len(data))

    def get(self, address, length):
        buffer = ctypes.create_string_buffer(length)
        self.library.libttsim_pci_mem_rd_bytes(address, buffer, length)
        return buffer.raw

    def window(self, number, address):
        # Of tile (1, 2), or (18, 18) of Wormhole.
        if self.is_wormhole:
            value = address >> 20 | 18 << 16 | 18 << 22 | 1 << 43
            self.put(BASE + 0x1FC00000 + 8 * number, struct.pack("<Q", value))
            return
        for at, value in enumerate((address >> 21, 1 << 11 | 2 << 17, 1 << 6)):
            self.put(BASE + 0x1FC00000 + 4 * (3 * number + at), struct.pack("<I", value))

    def register(self, address, value):
        size = 0x100000 if self.is_wormhole else 0x200000
        self.put(BASE + size + address % size, struct.pack("<I", value))

    def run(self, case):
        """Runs a case, and returns what its ranges hold in the end."""
        base = BASE
        self.window(0, 0)
        self.window(1, 0xFFB00000 if self.is_wormhole else 0xFFA00000)
        self.register(0xFFB121B0, 0x47800)
        for address, data in case.writes:
            for at in range(0, len(data), 1 << 16):
                self.put(base + address + at, data[at:at + (1 << 16)])
        self.put(base + DONE, bytes(16))
        held = 0x47800
        for core, address in case.starts:
            held &= ~(0x800 << core)
            if core != B:
                self.register(0xFFB12228 + 4 * (core - 1), address)
        if not self.is_wormhole:
            self.register(0xFFB12234, 7)
        self.register(0xFFB121B0, held)
        for _ in range(1 << 12):
            self.library.libttsim_clock(64)
            done = struct.unpack("<4I", self.get(base + DONE, 16))
            if all(done[core] == 1 for core, _ in case.starts):
                self.library.libttsim_clock(256)
                return [self.get(base + address, length) for address, length in case.reads]
        raise RuntimeError("the program does not end")


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


class Case:
    def __init__(self):
        self.writes, self.starts, self.reads, self.sections = [], [], [], []
        self.streams = {}

    def random(self, address, style, fmt, count, seed):
        self.writes.append((address, elements(style, fmt, count, seed)))
        self.sections.append(struct.pack("<cIIBBQ", b"G", address, count, style, fmt, seed))

    def push(self, core, *words):
        self.streams.setdefault(core, []).extend((None, value) for value in words)

    def store(self, core, address, value):
        self.streams.setdefault(core, []).append((address, value))

    def config(self, core, register, value):
        self.store(core, 0xFFEF0000 + 4 * register, value)

    def write_config(self, core, register, value):
        """Lets the engine write a word of its configuration, in order with what it does."""
        self.push(core, word("SETDMAREG", half=0, value=value & 0xFFFF), word("SETDMAREG", half=1, value=value >> 16),
                  word("WRCFG", register=0, index=register), word("NOP"))

    def finish(self):
        """Makes code of the cores' streams: inline words of T cores, and stores of core B."""
        for core, stream in self.streams.items():
            code, stored = [], None
            for address, value in stream:
                if address is None and stored is not None:
                    # What the core stored is there before an instruction that it pushes.
                    code += load_immediate(5, stored) + [lw(6, 0, 5), addi(6, 6, 0)]
                    stored = None
                elif address is not None and address >> 16 == 0xFFEF:
                    stored = address
                if address is None and core != B:
                    code.append((value << 2 | value >> 30) & 0xFFFFFFFF)
                else:
                    address = 0xFFE40000 if address is None else address
                    code += load_immediate(5, address) + load_immediate(6, value) + [sw(6, 0, 5)]
            if core != B:
                # Waits until all is done.
                code += load_immediate(5, 0xFFE80000) + [sw(0, 4, 5), lw(6, 4, 5), addi(6, 6, 0)]
            code += load_immediate(5, DONE + 4 * core) + [addi(6, 0, 1), sw(6, 0, 5), 0x6F]
            place = 0 if core == B else CODE + 0x8000 * core
            assert len(code) < 0x2000
            data = struct.pack(f"<{len(code)}I", *code)
            self.writes.append((place, data))
            self.sections.append(b"W" + struct.pack("<II", place, len(data)) + data)
            self.starts.append((core, place))

    def packed(self, results):
        """The case with its results, as the file has it."""
        sections = self.sections + [b"S" + struct.pack("<II", address, core) for core, address in self.starts]
        sections += [b"R" + struct.pack("<IIQ", address, length, fnv(data))
                     for (address, length), data in zip(self.reads, results)]
        return b"".join(sections) + b"E"


def lui(rd, value):
    return (value & 0xFFFFF000) | rd << 7 | 0x37


def addi(rd, rs, value):
    return (value & 0xFFF) << 20 | rs << 15 | rd << 7 | 0x13


def lw(rd, offset, rs):
    return offset << 20 | rs << 15 | 2 << 12 | rd << 7 | 3


def sw(rs2, offset, rs1):
    return (offset >> 5) << 25 | rs2 << 20 | rs1 << 15 | 2 << 12 | (offset & 31) << 7 | 0x23


def load_immediate(rd, value):
    upper = (value + 0x800) & 0xFFFFF000
    low = value - upper & 0xFFF
    if upper == 0:
        return [addi(rd, 0, low)]
    return [lui(rd, upper)] + ([addi(rd, rd, low)] if low else [])


STYLES = ["noise", "edges", "near", "halves"]
EDGES = [0, 0, 1, 2, 126, 127, 127, 128, 253, 254, 255, 255]
MANTISSAS = [0, 1, 0x7FFFFF, 0x400000]


def elements(style, fmt, count, seed):
    """Random elements, as the tests make them from the same numbers."""
    out, state = bytearray(), seed
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        value, more = state >> 32, state >> 20 & 0xFFF
        if style == 1:
            exponent = EDGES[more % 12]
            mantissa = MANTISSAS[more >> 4 & 3] if more >> 8 & 3 else value & 0x7FFFFF
            value = value & 0x80000000 | exponent << 23 | mantissa
        elif style == 2:
            value = value & 0x807FFFFF | 120 + more % 14 << 23 if more >> 8 else value & 0x80000000
        elif style == 3:
            value = value & 0x807FFFFF | 111 + more % 33 << 23
        if fmt == FP16 and style:
            exponent = max(0, min(31, (value >> 23 & 0xFF) - 112))
            value = (value >> 16 & 0x8000 | exponent << 10 | value >> 13 & 0x3FF) << 16
        out += value.to_bytes(4, "little")[4 - BYTES[fmt]:]
    return bytes(out)


# (in memory, in the source, Dst of 32 bits, the packer's format, in memory)
KINDS = [
    (BF16, BF16, True, FP32, FP32), (BF16, BF16, True, BF16, BF16), (BF16, BF16, False, BF16, BF16),
    (BF16, BF16, False, BF16, FP32), (FP32, TF32, True, FP32, FP32), (FP32, TF32, True, BF16, BF16),
    (FP32, TF32, False, BF16, BF16), (FP32, BF16, True, FP32, FP32), (FP16, FP16, True, FP32, FP32),
    (FP16, FP16, False, FP16, FP16), (FP16, FP16, False, FP16, FP32), (FP16, FP16, False, FP16, BF16),
    (FP16, FP16, True, FP32, FP16), (FP32, FP16, True, FP32, FP32), (INT8, INT8, True, INT32, INT32),
    (INT8, INT8, True, INT8, INT8), (BF16, BF16, True, FP32, FP16), (FP32, FP16, False, FP16, FP16),
]


def set_up(case, core, kind, unsigned, more={}):
    """What a product needs before the first instruction: formats, addresses, and address modes 0 to 5."""
    words = case_words(kind, unsigned) | more
    for register in sorted(words):
        case.config(core, register, words[register])
    case.push(core, *modes(), word("SETC16", index=5, value=4), word("SETC16", index=37, value=4),
              word("SETADCXY", counters=7, mask=15), word("SETADCZW", counters=7, mask=15),
              word("SETADCXX", counters=3, x1=1023), word("SETADCXX", counters=4, x1=15),
              word("ZEROACC", mode=3), word("SETRWC", mask=15))


def case_words(kind, unsigned):
    """The words of the configuration, for operands and a result at their places."""
    memory, source, wide, packed, result = kind
    integers = source == INT8
    descriptor = memory | 1 << 4 | 256 << 16
    size = BYTES[packed]
    return {
        1: unsigned << 15 | unsigned << 16 | source << 17 | source << 21 | packed << 25
           | (wide and not integers) << 29 | integers << 31,
        12: size | 16 * size << 16, 18: int(wide) | unsigned << 1, 24: 0xFFFF, 28: 16 << 8,
        64: descriptor, 65: 1 | 4 << 16, 69: (RESULT >> 4) - 1, 70: result << 4 | packed << 8,
        72: source, 73: 1, 76: (RIGHT >> 4) - 1, 84: 64, 86: 256,
        112: descriptor, 113: 1 | 4 << 16, 120: source, 121: 1, 124: (LEFT >> 4) - 1,
    }


def modes():
    """The address modes of a product."""
    modes = [(0, 8, 8, 0, 0), (0, 24, 24, 0, 0), (16, 24, 1000, 0, 0), (16, 40, 968, 0, 0), (16, 8, 968, 1, 0),
             (16, 8, 968, 0, 1)]
    words = []
    for mode, (a, b, dst, fidelity, clears) in enumerate(modes):
        words += [word("SETC16", index=12 + mode, value=a | b << 8),
                  word("SETC16", index=28 + mode, value=dst | fidelity << 13 | clears << 15)]
    return words


UNPACK = [word("UNPACR", last=1, flip_src=1, multi=1, which=which) for which in (0, 1)]
WALK = [0, 1, 0, 2, 0, 1, 0, 3, 0, 1, 0, 2, 0, 1, 0]


def products(rng):
    """A product of tiles of 32 by 32, in some format, with some phases."""
    case, kind = Case(), rng.choice(KINDS)
    memory = kind[0]
    core = rng.choice([B, T0, T1, T2])
    tiles, phases = rng.choice([1, 1, 2, 3]), rng.choice([1, 2, 3, 4])
    first = rng.choice([0, 0, 0, 1, 2, 3])
    size = 1024 * BYTES[memory]
    for place in (LEFT, RIGHT):
        case.random(place, rng.randrange(4), memory, 1024 * tiles, rng.getrandbits(63))
    set_up(case, core, kind, rng.getrandbits(1))
    if first:
        # Only a mode sets the phase: an instruction with one that has an effect on nothing else that matters.
        case.push(core, word("SETC16", index=28 + 6, value=first << 13), word("ZEROACC", mode=1, imm10=5, addr_mod=6))
    for tile in range(tiles):
        case.write_config(core, 76, (RIGHT + size * tile >> 4) - 1)
        case.write_config(core, 124, (LEFT + size * tile >> 4) - 1)
        case.push(core, *UNPACK)
        for phase in range(phases):
            last = phase == phases - 1
            for mode in WALK:
                case.push(core, word("MVMUL", addr_mod=mode))
            case.push(core, word("MVMUL", addr_mod=5 if last and not first else 4, flip=3 if last else 0))
    for at in range(16):
        case.push(core, word("PACR", last=int(at == 15)))
    case.reads.append((RESULT, 1024 * BYTES[kind[4]]))
    case.finish()
    return case


# Those that Wormhole's packer has, too.
WORMHOLE_KINDS = [kind for kind in KINDS if kind != (BF16, BF16, True, FP32, FP16)
                  and kind != (FP16, FP16, True, FP32, FP16)]


def wormhole_words(kind, unsigned):
    """The words of Wormhole's configuration for a product."""
    memory, source, wide, packed, result = kind
    size = BYTES[packed]
    words = {1: case_words(kind, unsigned)[1], 8: size | 16 * size << 12, 14: int(wide) | unsigned << 1, 20: 0xFFFF,
             52: memory | 1 << 4 | 256 << 16, 53: 1 | 4 << 16, 57: (RESULT >> 4) - 1, 60: source, 61: 1,
             64: (RIGHT >> 4) - 1, 72: 64, 74: 256, 92: memory | 1 << 4 | 256 << 16, 93: 1 | 4 << 16, 100: source,
             101: 1, 104: (LEFT >> 4) - 1}
    # All four packers have the same.
    words |= {word: result << 4 | packed << 8 for word in (58, 86, 98, 126)} | {word: 16 << 8 for word in range(24, 28)}
    return words


def wormhole(rng):
    """Products of blocks of tiles on Wormhole, whose instructions have four modes and core B alone starts others."""
    case, kind = Case(), rng.choice(WORMHOLE_KINDS)
    memory, integers = kind[0], kind[1] == INT8
    tiles, phases = rng.choice([1, 1, 2, 3]), rng.choice([1, 2, 3, 4])
    size = 1024 * BYTES[memory]
    for place in (LEFT, RIGHT):
        case.random(place, rng.randrange(4), memory, 1024 * tiles, rng.getrandbits(63))
    words = wormhole_words(kind, rng.getrandbits(1))
    for register in sorted(words):
        case.config(B, register, words[register])
    modes = [(0, 8, 8, 0, 0), (0, 24, 24, 0, 0), (16, 24, 1000, 0, 0), (32, 40, 968, 1, 0)]
    for mode, (a, b, dst, fidelity, clears) in enumerate(modes):
        case.push(B, word("SETC16", index=7 + 2 * mode, value=a | b << 8),
                  word("SETC16", index=23 + mode, value=dst | fidelity << 13 | clears << 15))
    case.push(B, word("SETC16", index=3, value=4), word("SETC16", index=31, value=1),
              word("SETADCXY", counters=7, mask=15), word("SETADCZW", counters=7, mask=15),
              word("SETADCXX", counters=3, x1=1023), word("SETADCXX", counters=4, x1=15),
              word("ZEROACC", mode=3), word("SETRWC", mask=15))
    for tile in range(tiles):
        case.write_config(B, 64, (RIGHT + size * tile >> 4) - 1)
        case.write_config(B, 104, (LEFT + size * tile >> 4) - 1)
        case.push(B, *UNPACK)
        for phase in range(phases):
            for at, mode in enumerate([0, 1, 0, 2, 0, 1, 0, 3] * 2):
                flip = 3 if (phase, at) == (phases - 1, 15) else 0
                case.push(B, word("MVMUL", flip=flip) | mode << 15)
        case.push(B, word("SETRWC", mask=15))
    for at in range(64):
        case.push(B, word("PACR", last=int(at == 63), read_intf_sel=1))
    case.reads.append((RESULT, 1024 * BYTES[kind[4]]))
    case.finish()
    return case


def dump(case, core):
    """Reads all of Dst as it is."""
    case.push(core, word("STALLWAIT", condition=0x1F, block=0x1FF))
    for register, value in {1: INT32 << 25, 12: 4 | 64 << 16, 13: 0, 14: 0, 18: 1, 24: 0xFFFF, 20: 0, 28: 16 << 8,
                            69: (DUMP >> 4) - 1, 70: INT32 << 4 | INT32 << 8, 180: 0}.items():
        case.write_config(core, register, value)
    # Ends what a packer has begun.
    case.push(core, word("SETC16", index=0, value=0), word("SETC16", index=37, value=4),
              word("SETADCXX", counters=4, x1=15), word("SETADCXY", counters=4, mask=10),
              word("SETADCZW", counters=4, mask=15), word("PACR", last=1), word("SETADCXY", counters=4, mask=10))
    for at in range(128):
        case.push(core, word("PACR", last=int(at == 127)))
    case.reads.append((DUMP, 512 * 64))


class Model:
    """What a program's maker must know of the engine's state, so that nothing waits for ever."""

    def __init__(self):
        self.valid = [0, 0]
        self.packs = False

    def before_write(self):
        """What comes before a write to Dst: the packer's end."""
        packs, self.packs = self.packs, False
        return [word("STALLWAIT", condition=8, block=0x40)] if packs else []


def instruction(rng, core, model, kind):
    """Random instructions that may follow."""
    choice = rng.randrange(22)
    mask = rng.randrange(1, 8)
    small = lambda: rng.randrange(8)
    if choice < 4:
        which = rng.randrange(2)
        if model.valid[which] == 2:
            return []
        flip = int(rng.random() < 0.8)
        model.valid[which] += flip
        return [word("UNPACR", last=1, multi=1, flip_src=flip, which=which, ch0_z=rng.randrange(4),
                     ch0_y=rng.randrange(4), ch1_z=rng.choice([0, 0, 1]), ch1_y=rng.choice([0, 0, 1]))]
    if choice < 12:
        if min(model.valid) == 0:
            return []
        flip = rng.choice([0, 0, 0, 0, 0, 1, 2, 3])
        model.valid[0] -= flip & 1
        model.valid[1] -= flip >> 1
        return model.before_write() + [word("MVMUL", addr_mod=small(), dst=8 * rng.randrange(64), flip=flip)]
    if choice == 12:
        return [word("SETRWC", mask=rng.getrandbits(4), a=0, b=8 * rng.getrandbits(1), d=8 * rng.getrandbits(1))]
    if choice == 13:
        return [word("INCRWC", b=8 * rng.getrandbits(1), d=8 * rng.getrandbits(1), cr=4 * rng.getrandbits(1))]
    if choice == 14:
        mode = rng.randrange(4)
        place = {0: rng.randrange(8), 1: rng.randrange(32), 2: rng.getrandbits(1), 3: 0}[mode]
        wide = rng.getrandbits(1)
        if mode == 1 and wide:
            place = rng.randrange(16)
        if mode == 0 and kind[1] == INT8:
            return []
        wide_mode = wide if mode else 0
        return model.before_write() + [
            word("ZEROACC", mode=mode, imm10=place, use_dst32b=wide_mode, addr_mod=small())
        ]
    if choice == 15:
        both = rng.getrandbits(1)
        return [word("ZEROSRC", src=3 if both else rng.randrange(1, 4), both=both, single=1 - both)]
    if choice == 16:
        return [word("SETADCXX", counters=mask & 3 or 1, x0=0, x1=rng.choice([15, 31, 63, 127, 255, 255, 511, 1023])),
                word("SETADCZW", counters=mask, mask=15, z0=small(), w0=0, z1=0, w1=0),
                word("SETADCXY", counters=mask & 3 or 1, mask=10, y0=small(), y1=0),
                word("SETADCXY", counters=4, mask=10, y0=4 * rng.getrandbits(1), y1=0)]
    if choice == 17:
        return [word("SETADC", counters=mask, channel=0, xyzw=rng.choice([1, 2]), value=4 * rng.randrange(8)),
                word("INCADCXY", counters=4, y0=rng.choice([0, 4])), word("INCADCZW", counters=mask, z0=small())]
    if choice == 18:
        return [word("SETC16", index=1, value=8 * rng.randrange(128))]
    if choice == 19:
        which = rng.randrange(2)
        if model.valid[which]:
            return []
        dvalid = rng.getrandbits(1)
        model.valid[which] += dvalid
        return [word("UNPACR_NOP", pop=1, value=0 if which else rng.getrandbits(1) * (kind[1] == BF16), stall=1,
                     dvalid=dvalid, which=which)]
    if choice == 20:
        register, place = rng.randrange(64), rng.choice([76, 124, 69, 180])
        value = {76: RIGHT, 124: LEFT, 69: RESULT}.get(place, 0)
        value = (value >> 4) - 1 + 16 * rng.randrange(64) if value else 4 * rng.randrange(64)
        return [word("SETDMAREG", half=2 * register, value=value & 0xFFFF),
                word("SETDMAREG", half=2 * register + 1, value=value >> 16),
                word("WRCFG", register=register, index=place), word("NOP")]
    last, model.packs = rng.getrandbits(1), True
    return [word("STALLWAIT", condition=rng.randrange(1, 32), block=rng.randrange(1, 512)),
            word("PACR", read_intf_sel=rng.choice([0, 0, 1, 3, 5, 10]), addr_mod=rng.randrange(4), last=last)]


def programs(rng):
    """Random instructions of one thread, and what is in Dst after them."""
    case, kind, model = Case(), rng.choice(KINDS), Model()
    core = rng.choice([B, T0, T1, T2])
    for place in (LEFT, RIGHT):
        case.random(place, rng.randrange(4), kind[0], 0x10000 // BYTES[kind[0]], rng.getrandbits(63))
    more = {13: 16 * BYTES[kind[3]] * rng.choice([4, 16, 64]), 57: rng.choice([0, 32]), 59: rng.choice([0, 64]),
            65: rng.randrange(1, 5) | rng.randrange(5) << 16, 113: rng.randrange(1, 5) | rng.randrange(5) << 16,
            86: rng.choice([16, 32, 64, 256]), 112: kind[0] | 1 << 4 | rng.choice([16, 32, 64, 256]) << 16,
            25: rng.choice([0xFFFF, 1, 0]), 20: sum(rng.getrandbits(1) << 2 * at for at in range(16)),
            24: rng.choice([0xFFFF, 0xFFFF, 1, 0]) | rng.getrandbits(1) << 17, 28: rng.choice([16, 8, 4]) << 8}
    if rng.random() < 0.3:
        more[72] = kind[1] | 1 << 8
    elif rng.random() < 0.3 and BYTES[kind[0]] > 1:
        stride = 16 * rng.randrange(4, 16)
        more[72] = kind[1] | 1 << 9 | (stride >> 4 & 15) << 16 | (stride >> 8) << 20
    # What is stored last can be loaded back in the vendor's simulator.
    more[124] = (LEFT >> 4) - 1
    set_up(case, core, kind, rng.getrandbits(1), more)
    flags = lambda: rng.choice([0, 0, 0, 1, 2])
    for mode in range(8):
        a, b = rng.choice([0, 0, 16, 48]), 8 * rng.randrange(8)
        case.push(core, word("SETC16", index=12 + mode, value=a | flags() << 6 | b << 8 | flags() << 14),
                  word("SETC16", index=28 + mode, value=8 * rng.randrange(128) | rng.choice([0, 0, 1, 2, 4]) << 10
                       | rng.randrange(4) << 13 | rng.choice([0, 0, 1]) << 15))
    for mode in range(4):
        case.push(core, word("SETC16", index=37 + mode, value=4 * rng.randrange(4) | flags() << 4 | flags() << 12))
    recorded = None
    for _ in range(rng.randrange(20, 120)):
        words = instruction(rng, core, model, kind)
        if recorded is None and words and rng.random() < 0.05:
            # Counters alone can be replayed whatever the state is.
            recorded = [word("INCADCXY", counters=3, y0=1), word("INCRWC", d=8), word("INCADCZW", counters=3, z0=1)]
            index, exec = rng.randrange(32), rng.getrandbits(1)
            words = [word("REPLAY", load=1, exec=exec, count=3, index=index)] + recorded + words
        elif recorded and rng.random() < 0.1:
            words = words + [word("REPLAY", count=rng.choice([1, 2, 3]), index=index)]
        case.push(core, *words)
    for which in (0, 1):
        case.push(core, *[word("CLEARDVALID", flip=1 + which)] * model.valid[which])
    dump(case, core)
    case.reads.append((RESULT, 0x10000))
    case.finish()
    return case


def threads(rng):
    """Tiles, of which a thread unpacks, another multiplies, and a third packs, with halves of Dst in turns."""
    case, kind = Case(), rng.choice([kind for kind in KINDS if kind[2] and kind[1] != INT8])
    memory, source, _, packed, result = kind
    tiles, depth, phases = rng.randrange(1, 6), rng.randrange(1, 4), rng.choice([1, 2, 4])
    size = 1024 * BYTES[memory]
    for place in (LEFT, RIGHT):
        case.random(place, rng.choice([1, 2, 3]), memory, 1024 * depth, rng.getrandbits(63))
    words = case_words(kind, 0)
    for core, of in ((T0, range(56, 68)), (T0, range(72, 93)), (T0, range(112, 130)), (T1, [1]), (T2, range(12, 56)),
                     (T2, range(68, 72))):
        for register in of:
            if register in words:
                case.config(core, register, words[register])
    # One MOP unpacks both tiles of a product, and another multiplies.
    case.push(T0, word("SETC16", index=5, value=4), word("SETADCXY", counters=3, mask=15),
              word("SETADCZW", counters=3, mask=15), word("SETADCXX", counters=3, x1=1023))
    for at, value in {1: 1, 2: UNPACK[1], 3: UNPACK[0], 7: word("NOP"), 8: word("NOP")}.items():
        case.store(T0, 0xFFB80000 + 4 * at, value)
    case.push(T1, *modes(), word("SETRWC", mask=15), word("SEMINIT", mask=1, value=0, max=2))
    case.push(T1, word("REPLAY", load=1, count=15, index=7), *[word("MVMUL", addr_mod=mode) for mode in WALK])
    for at, value in {0: phases, 1: 1, 2: word("NOP"), 3: word("NOP"), 4: word("NOP"), 5: word("NOP"),
                      6: word("NOP"), 7: word("MVMUL", addr_mod=5, flip=3), 8: word("MVMUL", addr_mod=4)}.items():
        case.store(T1, 0xFFB80000 + 4 * at, word("REPLAY", count=15, index=7) if at == 2 else value)
    case.push(T2, word("SETC16", index=37, value=4), word("SETADCXX", counters=4, x1=15))
    for tile in range(tiles):
        half = tile % 2
        for at in range(depth):
            if at or tile:
                case.write_config(T0, 76, (RIGHT + size * at >> 4) - 1)
                case.write_config(T0, 124, (LEFT + size * at >> 4) - 1)
            case.push(T0, word("MOP"))
        case.push(T1, word("SEMWAIT", condition=2, mask=1, block=0x42), word("ZEROACC", mode=2, imm10=half),
                  word("SETC16", index=1, value=256 * half))
        case.push(T1, *[word("MOP", template=1)] * depth)
        case.push(T1, word("STALLWAIT", condition=16, block=2), word("SEMPOST", mask=1))
        case.write_config(T2, 69, (RESULT + 0x1000 * tile >> 4) - 1)
        case.write_config(T2, 180, 256 * half)
        case.push(T2, word("SEMWAIT", condition=1, mask=1, block=0x6), word("SETADCXY", counters=4, mask=10),
                  word("SETADCZW", counters=4, mask=15))
        for at in range(16):
            case.push(T2, word("PACR", last=int(at == 15)))
        case.push(T2, word("STALLWAIT", condition=8, block=2), word("SEMGET", mask=1))
        case.reads.append((RESULT + 0x1000 * tile, 1024 * BYTES[result]))
    case.push(T1, word("SETC16", index=1, value=0))
    case.finish()
    return case


def worker(library, kind, seed, start, count):
    """Runs cases in a row on one chip, and writes each with its results."""
    vendor = Vendor(library)
    out = os.dup(1)
    # The simulator prints what it refuses.
    os.dup2(2, 1)
    for at in range(start, start + count):
        case = KINDS_OF_CASES[kind](random.Random(f"{kind} {seed} {at}"))
        data = case.packed(vendor.run(case))
        data = struct.pack("<I", len(data)) + data
        while data:
            data = data[os.write(out, data):]


def main():
    library, kind, seed, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if len(sys.argv) > 5:
        return worker(library, kind, seed, int(sys.argv[5]), count)
    done = refused = 0
    while done + refused < count:
        # A chip that refused a program is gone: the next case begins on a new one.
        sys.stdout.buffer.write(b"M" if kind == "wormhole" else b"N")
        rest = count - done - refused
        command = [sys.executable, __file__, library, kind, seed, str(rest), str(done + refused)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        while length := child.stdout.read(4):
            sys.stdout.buffer.write(child.stdout.read(struct.unpack("<I", length)[0]))
            done += 1
            rest -= 1
        reason = child.stderr.read().decode(errors="replace").strip().splitlines()
        child.wait()
        if rest > 0:
            refused += 1
            print(f"case {done + refused - 1} is refused: {reason[-1:]}", file=sys.stderr)
    print(f"{done} cases, {refused} refused", file=sys.stderr)


KINDS_OF_CASES = {"products": products, "programs": programs, "threads": threads, "wormhole": wormhole}

if __name__ == "__main__":
    main()
