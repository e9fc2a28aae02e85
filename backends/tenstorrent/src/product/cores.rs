// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The code of a tile's cores for a product: a function that each core calls once, with its number as its workgroup.
//!
//! | core | does |
//! |---|---|
//! | B | brings chunks of both operands from DRAM |
//! | T0 | has them unpacked, square by square |
//! | T1 | has squares multiplied |
//! | T2 | has groups of results packed into one of two places |
//! | NC | writes them to DRAM |
//!
//! All of them go through the tile's blocks in the same order, and through the groups of each. Four [words](Flags) in
//! the tile's memory, each of which one core counts up and another polls, say how far the first is: so each works ahead
//! of the next as far as there are places. T0 to T2 go by the engine's own means ([`engine`]).
//!
//! The code is assembled for a dispatch: sizes and addresses are constants in it.
//!
//! # Order
//!
//! A core's load that another core's count answers is used by the branch behind it, before anything else is stored or
//! told to the network or the engine. Bytes that the network has brought are in memory before it counts the answer, and
//! what the engine wrote is there when `CoprocessorDoneCheck` says so. What a core has stored in memory, it loads back
//! before it begins a transfer ([`stub`](crate::stub)).

use super::division::{Division, GROUP, Request, SIDE};
use super::engine::{self, Engine, Operand, Rows};
use crate::generation::Generation;
use crate::stub::{
    CONTROL, CORES, INTERFACE, LENGTH, READ, READS, RETURN, S, TARGET, WRITE, WRITES, discard,
};
use hal_tenstorrent_loader::encode::{
    Assembler, Label, Reg, When, add, addi, andi, divu, jalr, lhu, lui, lw, mul, remu, sh, slli, srli, sub,
    sw, xori,
};

const ZERO: Reg = Reg::ZERO;
const RA: Reg = Reg::RA;
const SP: Reg = Reg::SP;
const T: [Reg; 7] = Reg::T;
const A: [Reg; 8] = Reg::A;

/// The number of a core, of which this is T1's.
const ROLE: Reg = S[0];
const T1: i32 = 2;
/// What T1 says of the engine: it is free, or it is not.
const GO: i32 = 1;
const STOP: i32 = 2;
/// The tile's block that a core is at, and where they end.
const BLOCK: Reg = S[0];
const BLOCKS_END: Reg = S[1];
/// The product that it is of, and the row and the column of blocks in that.
const BATCH: Reg = Reg::GP;
const BLOCK_ROW: Reg = S[2];
const BLOCK_COLUMN: Reg = S[3];
/// The row of squares that a core is at, and where they end.
const ROW: Reg = S[4];
const ROWS_END: Reg = S[5];
/// The first column of squares of the group that a core is at, and where they end.
const COLUMN: Reg = S[6];
const COLUMNS_END: Reg = S[7];

/// What the function returns where the engine is in the middle of another product.
pub(super) const ENGINE_IS_BUSY: u32 = 1;

/// Words in the tile's memory by which cores wait for each other: their addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flags {
    /// What T1 has found: [`GO`] or [`STOP`].
    pub(super) found: u32,
    /// How many chunks B has brought.
    pub(super) brought: u32,
    /// How many chunks T0 has no more use for.
    pub(super) used: u32,
    /// How many groups T2 has had packed.
    pub(super) packed: u32,
    /// How many of these NC has written.
    pub(super) written: u32,
}

/// A matrix in DRAM.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matrix {
    /// The address, in the tile, of the first of the entries of its pages: coordinates, and an address.
    pub(super) pages: u32,
    /// Its offset in the first of them.
    pub(super) offset: u32,
    /// How far it is from row to row.
    pub(super) stride: u32,
    /// How far it is to that of the next product.
    pub(super) batch: u32,
}

impl Matrix {
    /// Where that of the product that a core is at begins, in a register, by the help of another.
    fn begin(&self, asm: &mut Assembler, at: Reg, help: Reg) {
        asm.constant(at, self.batch);
        asm.constant(help, self.offset);
        asm.emit_all([mul(at, at, BATCH), add(at, at, help)]);
    }
}

/// Everything that the code is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    pub(super) generation: &'static Generation,
    pub(super) engine: Engine,
    pub(super) phases: u32,
    pub(super) request: Request,
    pub(super) division: Division,
    /// The address of the numbers of the tile's first block and of that behind its last.
    pub(super) range: u32,
    /// The coordinates of this tile, for the network: the address of a word.
    pub(super) own: u32,
    pub(super) flags: Flags,
    pub(super) left: Matrix,
    pub(super) right: Matrix,
    pub(super) result: Matrix,
    /// The places of chunks, and the two places of results.
    pub(super) left_rows: Rows,
    pub(super) right_rows: Rows,
    pub(super) results: Rows,
    /// Places for rows of results that are not where the network needs them; see [`Program::moves`].
    pub(super) moved: Rows,
}

impl Program {
    /// The function.
    pub(super) fn assemble(&self) -> Vec<u32> {
        let mut asm = Assembler::new();
        let leave = asm.label();
        let roles: [Label; CORES] = std::array::from_fn(|_| asm.label());
        enter(&mut asm);
        self.begin(&mut asm, leave);
        for (number, role) in (0..).zip(roles) {
            let next = asm.label();
            asm.emit(addi(T[1], ZERO, number));
            asm.branch(When::Ne, ROLE, T[1], next);
            asm.jump(ZERO, role);
            asm.bind(next);
        }
        let codes = [Self::bring, Self::unpack, Self::multiply, Self::pack, Self::write];
        for (role, code) in roles.into_iter().zip(codes) {
            asm.bind(role);
            code(self, &mut asm);
            asm.emit(addi(A[0], ZERO, 0));
            asm.jump(ZERO, leave);
        }
        asm.bind(leave);
        self::leave(&mut asm);
        asm.finish()
    }

    /// Has T1 look whether the engine is free, and the others wait for that.
    fn begin(&self, asm: &mut Assembler, leave: Label) {
        let [others, busy, wait, go] = std::array::from_fn(|_| asm.label());
        asm.emit_all([lw(ROLE, 0, A[2]), addi(T[0], ZERO, T1)]);
        asm.branch(When::Ne, ROLE, T[0], others);
        asm.constant(T[0], engine::BUSY_VALUE);
        asm.emit(lw(T[0], 0, T[0]));
        asm.branch(When::Ne, T[0], ZERO, busy);
        engine::begin().into_iter().for_each(|word| tell_engine(asm, word));
        wait_for_engine(asm);
        asm.emit(addi(T[2], ZERO, GO));
        Self::tell(asm, self.flags.found, T[2]);
        asm.jump(ZERO, go);
        asm.bind(busy);
        asm.emit(addi(T[2], ZERO, STOP));
        Self::tell(asm, self.flags.found, T[2]);
        asm.constant(A[0], ENGINE_IS_BUSY);
        asm.jump(ZERO, leave);
        asm.bind(others);
        asm.constant(T[0], self.flags.found);
        asm.bind(wait);
        discard(asm, self.generation);
        asm.emit(lw(T[1], 0, T[0]));
        asm.branch(When::Eq, T[1], ZERO, wait);
        asm.emit_all([addi(T[0], ZERO, GO), addi(A[0], ZERO, 0)]);
        asm.branch(When::Eq, T[1], T[0], go);
        asm.jump(ZERO, leave);
        asm.bind(go);
    }

    /// True if rows of results are not where the network needs them, at the address in DRAM modulo 16: then NC moves
    /// them.
    fn moves(&self) -> bool {
        !self.result.stride.is_multiple_of(16) || !self.result.offset.is_multiple_of(16)
    }

    /// How many chunks a block has.
    fn chunks(&self) -> u32 {
        self.request.k.div_ceil(self.division.depth)
    }

    /// Runs code for each of the tile's blocks.
    fn blocks(&self, asm: &mut Assembler, code: impl FnOnce(&mut Assembler)) {
        let (next, end) = (asm.label(), asm.label());
        asm.constant(T[0], self.range);
        asm.emit_all([lw(BLOCK, 0, T[0]), lw(BLOCKS_END, 4, T[0])]);
        asm.bind(next);
        let go_on = asm.label();
        asm.branch(When::Ltu, BLOCK, BLOCKS_END, go_on);
        asm.jump(ZERO, end);
        asm.bind(go_on);
        asm.constant(T[0], self.division.of_one(&self.request));
        asm.emit_all([divu(BATCH, BLOCK, T[0]), remu(T[1], BLOCK, T[0])]);
        asm.constant(T[0], self.division.across(&self.request));
        asm.emit_all([divu(BLOCK_ROW, T[1], T[0]), remu(BLOCK_COLUMN, T[1], T[0])]);
        code(asm);
        asm.emit(addi(BLOCK, BLOCK, 1));
        asm.jump(ZERO, next);
        asm.bind(end);
    }

    /// Sets two registers to the first square of a block and to where its squares end, in one direction.
    fn squares(asm: &mut Assembler, (at, end): (Reg, Reg), block: Reg, (count, all): (u32, u32)) {
        asm.constant(T[0], count);
        asm.emit_all([mul(at, block, T[0]), add(end, at, T[0])]);
        asm.constant(T[0], all);
        at_most(asm, end, T[0]);
    }

    /// Runs code for each group of a block.
    fn groups(&self, asm: &mut Assembler, code: impl FnOnce(&mut Assembler)) {
        let Self { division, request, .. } = self;
        let [row, column, row_end, end] = std::array::from_fn(|_| asm.label());
        let (down, across) = request.squares();
        Self::squares(asm, (ROW, ROWS_END), BLOCK_ROW, (division.rows, down));
        asm.bind(row);
        asm.branch(When::Geu, ROW, ROWS_END, end);
        Self::squares(asm, (COLUMN, COLUMNS_END), BLOCK_COLUMN, (division.columns, across));
        asm.bind(column);
        asm.branch(When::Geu, COLUMN, COLUMNS_END, row_end);
        code(asm);
        asm.emit(addi(COLUMN, COLUMN, GROUP.cast_signed()));
        asm.jump(ZERO, column);
        asm.bind(row_end);
        asm.emit(addi(ROW, ROW, 1));
        asm.jump(ZERO, row);
        asm.bind(end);
    }

    /// Waits until another core's count has come to that in a register.
    fn wait(&self, asm: &mut Assembler, flag: u32, count: Reg) {
        asm.constant(T[0], flag);
        let wait = asm.here();
        discard(asm, self.generation);
        asm.emit_all([lw(T[1], 0, T[0]), sub(T[1], T[1], count)]);
        asm.branch(When::Lt, T[1], ZERO, wait);
    }

    /// Tells others a count.
    fn tell(asm: &mut Assembler, flag: u32, count: Reg) {
        asm.constant(T[0], flag);
        asm.emit(sw(count, 0, T[0]));
        load_back(asm, lw, T[0], 0);
    }

    /// Core B.
    fn bring(&self, asm: &mut Assembler) {
        let places = self.division.places;
        let (brought, place, answers, interface) = (S[8], S[9], S[10], S[11]);
        let (bring_rows, begin) = (asm.label(), asm.label());
        asm.jump(ZERO, begin);
        asm.bind(bring_rows);
        self.rows(asm, answers, interface, Direction::Bring);
        asm.bind(begin);
        self.network(asm, interface, 0, Direction::Bring);
        asm.emit_all([lw(answers, READS, interface), addi(brought, ZERO, 0), addi(place, ZERO, 0)]);
        self.blocks(asm, |asm| {
            let (chunk, last) = (A[7], asm.label());
            asm.emit(addi(chunk, ZERO, 0));
            let next = asm.here();
            asm.constant(T[2], self.chunks());
            let go_on = asm.label();
            asm.branch(When::Ltu, chunk, T[2], go_on);
            asm.jump(ZERO, last);
            asm.bind(go_on);
            // A place is free.
            asm.constant(T[2], places - 1);
            asm.emit(sub(T[2], brought, T[2]));
            self.wait(asm, self.flags.used, T[2]);
            self.left_chunk(asm, chunk, place);
            asm.jump(RA, bring_rows);
            self.right_chunk(asm, chunk, place);
            asm.jump(RA, bring_rows);
            let wait = asm.here();
            asm.emit(lw(T[0], READS, interface));
            asm.branch(When::Ne, T[0], answers, wait);
            asm.emit(addi(brought, brought, 1));
            Self::tell(asm, self.flags.brought, brought);
            next_place(asm, place, places);
            asm.emit(addi(chunk, chunk, 1));
            asm.jump(ZERO, next);
            asm.bind(last);
        });
    }

    /// The rows of a chunk of the left operand, for [`rows`](Self::rows).
    fn left_chunk(&self, asm: &mut Assembler, chunk: Reg, place: Reg) {
        let Self { division, request, left, left_rows, engine: Engine { kind, .. }, .. } = self;
        let rows = division.rows * SIDE;
        // How many rows there are.
        asm.constant(T[0], rows);
        asm.emit(mul(T[1], BLOCK_ROW, T[0]));
        asm.constant(T[2], request.m);
        asm.emit_all([sub(A[3], T[2], T[1])]);
        at_most(asm, A[3], T[0]);
        // Where they are in DRAM.
        left.begin(asm, A[0], T[2]);
        asm.constant(T[2], left.stride);
        asm.emit_all([mul(T[2], T[1], T[2]), add(A[0], A[0], T[2])]);
        self.depth(asm, chunk);
        asm.constant(T[2], kind.operand_bytes());
        asm.emit_all([mul(T[3], T[3], T[2]), add(A[0], A[0], T[3]), mul(A[2], T[4], T[2])]);
        // Where they go.
        target(asm, left_rows, division.left_rows(request), place);
        let whole = left_rows.pitch == left.stride && division.depth >= request.k;
        Self::shape(asm, left, left_rows.pitch, whole);
    }

    /// The rows of a chunk of the right operand, for [`rows`](Self::rows).
    fn right_chunk(&self, asm: &mut Assembler, chunk: Reg, place: Reg) {
        let Self { division, request, right, right_rows, engine: Engine { kind, .. }, .. } = self;
        let columns = division.columns * SIDE;
        // How many bytes there are in a row.
        asm.constant(T[0], columns);
        asm.emit(mul(T[1], BLOCK_COLUMN, T[0]));
        asm.constant(T[2], request.n);
        asm.emit(sub(A[2], T[2], T[1]));
        at_most(asm, A[2], T[0]);
        asm.constant(T[2], kind.operand_bytes());
        asm.emit_all([mul(A[2], A[2], T[2]), mul(T[1], T[1], T[2])]);
        // Where they are in DRAM.
        right.begin(asm, A[0], T[2]);
        asm.emit(add(A[0], A[0], T[1]));
        self.depth(asm, chunk);
        asm.constant(T[2], right.stride);
        asm.emit_all([mul(T[3], T[3], T[2]), add(A[0], A[0], T[3]), addi(A[3], T[4], 0)]);
        // Where they go.
        target(asm, right_rows, division.right_rows(request), place);
        let whole = right_rows.pitch == right.stride && columns >= request.n;
        Self::shape(asm, right, right_rows.pitch, whole);
    }

    /// Where a chunk begins in K, in T3, and how much of it it has, in T4.
    fn depth(&self, asm: &mut Assembler, chunk: Reg) {
        let Self { division, request, .. } = self;
        asm.constant(T[4], division.depth);
        asm.emit(mul(T[3], chunk, T[4]));
        asm.constant(T[5], request.k);
        asm.emit(sub(T[5], T[5], T[3]));
        at_most(asm, T[4], T[5]);
    }

    /// Where a matrix is in DRAM, and how far it is from row to row. Rows that follow each other on both sides are one.
    fn shape(asm: &mut Assembler, matrix: &Matrix, pitch: u32, whole: bool) {
        asm.constant(A[4], matrix.pages);
        asm.constant(A[5], matrix.stride);
        asm.constant(A[6], pitch);
        if whole {
            asm.emit_all([mul(A[2], A[2], A[3]), addi(A[3], ZERO, 1)]);
        }
    }

    /// Sets what is the same for all transfers of a core, and where its command buffer is.
    fn network(&self, asm: &mut Assembler, interface: Reg, buffer: u32, direction: Direction) {
        let coordinates = self.generation.network.coordinates;
        let (here, control) = match direction {
            Direction::Bring => (RETURN, READ),
            Direction::Write => (TARGET, READ | WRITE.cast_unsigned()),
        };
        asm.constant(interface, INTERFACE + buffer * self.generation.network.buffer);
        asm.constant(T[0], self.own);
        asm.emit(lw(T[0], 0, T[0]));
        asm.emit(sw(T[0], here + coordinates, interface));
        for place in [TARGET, RETURN] {
            for middle in (4..coordinates).step_by(4) {
                asm.emit(sw(ZERO, place + middle, interface));
            }
        }
        asm.constant(T[0], control);
        asm.emit(sw(T[0], CONTROL, interface));
    }

    /// A routine that has the network move A3 rows of A2 bytes, each in pieces that are in one page: between A0 of the
    /// matrix whose pages are at A4, and A1 of the tile. Each further row is A5 and A6 on. It counts the answers that
    /// there will be.
    fn rows(&self, asm: &mut Assembler, answers: Reg, interface: Reg, direction: Direction) {
        let network = &self.generation.network;
        let [row, piece, fits, row_end, end] = std::array::from_fn(|_| asm.label());
        let (offset, here, left) = (T[0], T[1], T[2]);
        asm.bind(row);
        asm.branch(When::Eq, A[3], ZERO, end);
        asm.emit_all([addi(offset, A[0], 0), addi(here, A[1], 0), addi(left, A[2], 0)]);
        if direction == Direction::Write && self.moves() {
            self.move_row(asm);
        }
        asm.bind(piece);
        asm.branch(When::Eq, left, ZERO, row_end);
        // What is left of it in its page.
        asm.emit_all([slli(T[3], offset, 20), srli(T[3], T[3], 20)]);
        asm.emit_all([lui(T[4], 0x1000), sub(T[4], T[4], T[3])]);
        asm.branch(When::Geu, left, T[4], fits);
        asm.emit(addi(T[4], left, 0));
        asm.bind(fits);
        asm.emit_all([srli(T[5], offset, 12), slli(T[5], T[5], 3), add(T[5], T[5], A[4])]);
        asm.emit_all([lw(T[6], 0, T[5]), lw(T[5], 4, T[5]), add(T[5], T[5], T[3])]);
        let busy = asm.here();
        asm.emit(lw(T[3], network.command, interface));
        asm.branch(When::Ne, T[3], ZERO, busy);
        let (there, own) = match direction {
            Direction::Bring => (TARGET, RETURN),
            Direction::Write => (RETURN, TARGET),
        };
        asm.emit_all([
            sw(T[5], there, interface),
            sw(T[6], there + network.coordinates, interface),
            sw(here, own, interface),
            sw(T[4], LENGTH, interface),
            addi(T[3], ZERO, 1),
            sw(T[3], network.command, interface),
            addi(answers, answers, 1),
            add(offset, offset, T[4]),
            add(here, here, T[4]),
            sub(left, left, T[4]),
        ]);
        asm.jump(ZERO, piece);
        asm.bind(row_end);
        asm.emit_all([add(A[0], A[0], A[5]), add(A[1], A[1], A[6]), addi(A[3], A[3], -1)]);
        asm.jump(ZERO, row);
        asm.bind(end);
        asm.emit(jalr(ZERO, RA, 0));
    }

    /// Moves the row at A1 to where the network can write it from: the next place at A7, as far behind 16 bytes as it
    /// is in DRAM.
    fn move_row(&self, asm: &mut Assembler) {
        let here = T[1];
        let step = self.engine.kind.result_bytes().cast_signed();
        let (load, store): (Access, Access) = if step == 4 { (lw, sw) } else { (lhu, sh) };
        asm.emit_all([andi(here, A[0], 15), add(here, here, A[7])]);
        asm.emit_all([addi(T[3], A[1], 0), addi(T[4], here, 0), add(T[5], here, A[2])]);
        let next = asm.here();
        asm.emit_all([load(T[6], 0, T[3]), store(T[6], 0, T[4])]);
        asm.emit_all([addi(T[3], T[3], step), addi(T[4], T[4], step)]);
        asm.branch(When::Ltu, T[4], T[5], next);
        load_back(asm, load, T[4], -step);
        asm.emit(addi(A[7], A[7], self.moved.pitch.cast_signed()));
    }

    /// T0.
    fn unpack(&self, asm: &mut Assembler) {
        let (before, first_place) = (S[8], S[9]);
        let config = self.engine.unpack_config(self.left_rows, self.right_rows);
        start(asm, &config, &engine::unpack_loop(), &self.engine.unpack_start());
        asm.constant(UNPACK_HALF, engine::ROW * engine::COLUMN);
        asm.constant(UNPACK_SIDE, SIDE * engine::COLUMN);
        asm.emit_all([addi(before, ZERO, 0), addi(first_place, ZERO, 0), addi(PLACE, ZERO, 0)]);
        self.blocks(asm, |asm| {
            self.groups(asm, |asm| {
                asm.emit(addi(PLACE, first_place, 0));
                self.unpack_group(asm, before);
            });
            asm.constant(T[0], self.chunks());
            asm.emit_all([add(before, before, T[0]), addi(first_place, PLACE, 0)]);
        });
    }

    /// All chunks of a group.
    fn unpack_group(&self, asm: &mut Assembler, before: Reg) {
        let Self { division, request, .. } = self;
        let (chunk, kept) = (A[0], asm.label());
        let (next, end) = (asm.label(), asm.label());
        asm.emit_all([sub(WIDTH, COLUMNS_END, COLUMN), addi(T[0], ZERO, GROUP.cast_signed())]);
        at_most(asm, WIDTH, T[0]);
        asm.emit(addi(chunk, ZERO, 0));
        asm.bind(next);
        asm.constant(T[0], self.chunks());
        let go_on = asm.label();
        asm.branch(When::Ltu, chunk, T[0], go_on);
        asm.jump(ZERO, end);
        asm.bind(go_on);
        asm.emit_all([add(T[2], before, chunk), addi(T[2], T[2], 1)]);
        self.wait(asm, self.flags.brought, T[2]);
        self.chunk_words(asm);
        // The squares that are whole in K, and the one that is not.
        asm.constant(STEPS, division.depth / SIDE);
        let last = self.chunks().saturating_sub(1);
        let in_last = request.k.saturating_sub(last * division.depth);
        let inner = asm.label();
        asm.constant(T[0], last);
        asm.branch(When::Ne, chunk, T[0], inner);
        asm.constant(STEPS, in_last / SIDE);
        asm.bind(inner);
        self.unpack_steps(asm);
        let rest = in_last % SIDE;
        if rest != 0 {
            let whole = asm.label();
            asm.constant(T[0], last);
            let go_on = asm.label();
            asm.branch(When::Eq, chunk, T[0], go_on);
            asm.jump(ZERO, whole);
            asm.bind(go_on);
            self.unpack_step(asm, rest);
            asm.bind(whole);
        }
        // The last group of a block gives the place back, when it is unpacked.
        asm.emit_all([addi(T[0], ROW, 1), addi(T[1], COLUMN, GROUP.cast_signed())]);
        asm.branch(When::Ne, T[0], ROWS_END, kept);
        asm.branch(When::Ltu, T[1], COLUMNS_END, kept);
        wait_for_engine(asm);
        asm.emit_all([add(T[2], before, chunk), addi(T[2], T[2], 1)]);
        Self::tell(asm, self.flags.used, T[2]);
        asm.bind(kept);
        next_place(asm, PLACE, division.places);
        asm.emit(addi(chunk, chunk, 1));
        asm.jump(ZERO, next);
        asm.bind(end);
    }

    /// The words that choose rows and columns of a chunk, for the first squares of a group.
    fn chunk_words(&self, asm: &mut Assembler) {
        let Self { division, request, left, right, engine: Engine { kind, .. }, .. } = self;
        // What a place's first bytes, of the first 64, add to the word of columns.
        let first = |asm: &mut Assembler, matrix: &Matrix, to: Reg| {
            matrix.begin(asm, to, T[0]);
            asm.constant(T[0], kind.operand_bytes());
            asm.emit_all([andi(to, to, 63), divu(to, to, T[0])]);
            asm.constant(T[0], engine::COLUMN);
            asm.emit(mul(to, to, T[0]));
        };
        // Rows of the left operand.
        asm.constant(T[0], division.left_rows(request));
        asm.emit(mul(LEFT_ROW, PLACE, T[0]));
        asm.constant(T[0], division.rows);
        asm.emit_all([mul(T[0], BLOCK_ROW, T[0]), sub(T[0], ROW, T[0]), slli(T[0], T[0], 5)]);
        asm.emit(add(LEFT_ROW, LEFT_ROW, T[0]));
        asm.constant(T[0], Operand::Left.row());
        asm.emit(add(LEFT_ROW, LEFT_ROW, T[0]));
        first(asm, left, LEFT_COLUMN);
        asm.constant(T[0], Operand::Left.columns(engine::ROW));
        asm.emit(add(LEFT_COLUMN, LEFT_COLUMN, T[0]));
        // Rows of the right one, and its columns.
        asm.constant(T[0], division.right_rows(request));
        asm.emit(mul(RIGHT_ROW, PLACE, T[0]));
        asm.constant(T[0], Operand::Right.row());
        asm.emit(add(RIGHT_ROW, RIGHT_ROW, T[0]));
        first(asm, right, RIGHT_COLUMN);
        asm.constant(T[0], division.columns);
        asm.emit_all([mul(T[0], BLOCK_COLUMN, T[0]), sub(T[0], COLUMN, T[0]), mul(T[0], T[0], UNPACK_SIDE)]);
        asm.emit(add(RIGHT_COLUMN, RIGHT_COLUMN, T[0]));
        asm.constant(T[0], Operand::Right.columns(engine::ROW));
        asm.emit(add(RIGHT_COLUMN, RIGHT_COLUMN, T[0]));
    }

    /// As many squares of a chunk as [`STEPS`] says.
    fn unpack_steps(&self, asm: &mut Assembler) {
        let (next, end) = (asm.label(), asm.label());
        asm.bind(next);
        let go_on = asm.label();
        asm.branch(When::Ne, STEPS, ZERO, go_on);
        asm.jump(ZERO, end);
        asm.bind(go_on);
        self.unpack_step(asm, SIDE);
        asm.emit_all([
            add(LEFT_COLUMN, LEFT_COLUMN, UNPACK_SIDE),
            addi(RIGHT_ROW, RIGHT_ROW, SIDE.cast_signed()),
        ]);
        asm.emit(addi(STEPS, STEPS, -1));
        asm.jump(ZERO, next);
        asm.bind(end);
    }

    /// A square of the left operand, and those of the right one that it is multiplied with, of as much as `depth` of K.
    fn unpack_step(&self, asm: &mut Assembler, depth: u32) {
        tell_engine(asm, Operand::Left.choose());
        if depth < SIDE {
            tell_engine(asm, Operand::Left.clear(self.engine.chip));
        }
        square(asm, Operand::Left, (LEFT_COLUMN, LEFT_ROW), (SIDE, depth));
        tell_engine(asm, Operand::Right.choose());
        let (at, count) = (T[3], T[4]);
        asm.emit_all([addi(at, RIGHT_COLUMN, 0), addi(count, WIDTH, 0)]);
        let next = asm.here();
        if depth < SIDE {
            tell_engine(asm, Operand::Right.clear(self.engine.chip));
        }
        square(asm, Operand::Right, (at, RIGHT_ROW), (depth, SIDE));
        asm.emit_all([add(at, at, UNPACK_SIDE), addi(count, count, -1)]);
        asm.branch(When::Ne, count, ZERO, next);
    }

    /// T1.
    fn multiply(&self, asm: &mut Assembler) {
        let half = S[8];
        start(asm, &self.engine.math_config(), &engine::math_loop(self.phases), &self.engine.math_start());
        asm.emit(addi(half, ZERO, 0));
        asm.constant(INSTRUCTIONS, engine::INSTRUCTIONS);
        self.blocks(asm, |asm| {
            self.groups(asm, |asm| {
                tell_engine(asm, engine::math_wait());
                asm.constant(T[0], engine::HALF_OFFSET);
                asm.emit(mul(T[0], T[0], half));
                asm.constant(T[1], self.engine.math_target());
                asm.emit_all([add(T[1], T[1], T[0]), sw(T[1], 0, INSTRUCTIONS)]);
                asm.constant(T[1], self.engine.clear());
                asm.emit_all([add(T[1], T[1], half), sw(T[1], 0, INSTRUCTIONS)]);
                tell_engine(asm, engine::math_counters(false));
                self.multiply_group(asm);
                self.engine.math_done().into_iter().for_each(|word| tell_engine(asm, word));
                asm.emit(xori(half, half, 1));
            });
        });
        wait_for_engine(asm);
    }

    /// All squares of a group, for all of K.
    fn multiply_group(&self, asm: &mut Assembler) {
        let (width, steps, count) = (A[0], A[1], A[2]);
        let (next, end) = (asm.label(), asm.label());
        asm.emit_all([sub(width, COLUMNS_END, COLUMN), addi(T[0], ZERO, GROUP.cast_signed())]);
        at_most(asm, width, T[0]);
        asm.constant(steps, self.request.k.div_ceil(SIDE));
        asm.bind(next);
        asm.branch(When::Eq, steps, ZERO, end);
        asm.emit(addi(count, width, 0));
        let square = asm.here();
        tell_engine(asm, engine::LOOP);
        asm.emit(addi(count, count, -1));
        asm.branch(When::Ne, count, ZERO, square);
        tell_engine(asm, engine::math_counters(true));
        asm.emit(addi(steps, steps, -1));
        asm.jump(ZERO, next);
        asm.bind(end);
    }

    /// T2.
    fn pack(&self, asm: &mut Assembler) {
        let (packed, half) = (S[8], S[9]);
        let engine = self.engine;
        let (target, places) = engine.pack_target(self.results);
        start(asm, &engine.pack_config(self.results), &engine.pack_loop(), &engine.pack_start());
        asm.emit_all([addi(packed, ZERO, 0), addi(half, ZERO, 0)]);
        self.blocks(asm, |asm| {
            self.groups(asm, |asm| {
                // The place that is written to has been written to DRAM.
                asm.emit(addi(T[2], packed, -1));
                self.wait(asm, self.flags.written, T[2]);
                let (other, end) = (asm.label(), asm.label());
                asm.constant(T[0], target);
                asm.branch(When::Ne, half, ZERO, other);
                let [first, second] = places;
                for (half, place) in [(0, first), (1, second)] {
                    asm.constant(T[1], place);
                    asm.emit(sw(T[1], 0, T[0]));
                    engine.pack(half).into_iter().for_each(|word| tell_engine(asm, word));
                    if half == 0 {
                        asm.jump(ZERO, end);
                        asm.bind(other);
                    }
                }
                asm.bind(end);
                wait_for_engine(asm);
                asm.emit_all([xori(half, half, 1), addi(packed, packed, 1)]);
                Self::tell(asm, self.flags.packed, packed);
            });
        });
        // This was the last that the engine had to do.
        tell_engine(asm, engine::end());
        wait_for_engine(asm);
    }

    /// NC.
    fn write(&self, asm: &mut Assembler) {
        let Self { engine: Engine { kind, .. }, request, result, results, .. } = self;
        let (written, answers, interface) = (S[8], S[10], S[11]);
        let (write_rows, begin) = (asm.label(), asm.label());
        asm.jump(ZERO, begin);
        asm.bind(write_rows);
        self.rows(asm, answers, interface, Direction::Write);
        asm.bind(begin);
        self.network(asm, interface, 1, Direction::Write);
        // Counters are of the whole interface.
        asm.constant(S[9], INTERFACE);
        asm.emit_all([lw(answers, WRITES, S[9]), addi(written, ZERO, 0)]);
        self.blocks(asm, |asm| {
            self.groups(asm, |asm| {
                asm.emit(addi(T[2], written, 1));
                self.wait(asm, self.flags.packed, T[2]);
                // Rows and bytes that are results, and of this block.
                asm.emit(slli(T[1], ROW, 5));
                asm.constant(A[3], request.m);
                asm.emit_all([sub(A[3], A[3], T[1]), addi(T[0], ZERO, SIDE.cast_signed())]);
                at_most(asm, A[3], T[0]);
                asm.emit(slli(T[2], COLUMN, 5));
                asm.constant(A[2], request.n);
                asm.emit_all([sub(A[2], A[2], T[2]), addi(T[0], ZERO, (GROUP * SIDE).cast_signed())]);
                at_most(asm, A[2], T[0]);
                asm.emit_all([sub(T[0], COLUMNS_END, COLUMN), slli(T[0], T[0], 5)]);
                at_most(asm, A[2], T[0]);
                asm.constant(T[0], kind.result_bytes());
                asm.emit_all([mul(A[2], A[2], T[0]), mul(T[2], T[2], T[0])]);
                Self::shape(asm, result, results.pitch, false);
                asm.emit_all([mul(T[1], T[1], A[5]), add(T[1], T[1], T[2])]);
                result.begin(asm, A[0], T[0]);
                asm.emit_all([add(A[0], A[0], T[1]), andi(T[1], written, 1)]);
                asm.constant(A[1], results.at);
                asm.constant(T[0], SIDE * results.pitch);
                asm.emit_all([mul(T[1], T[1], T[0]), add(A[1], A[1], T[1])]);
                asm.constant(A[7], self.moved.at);
                asm.jump(RA, write_rows);
                let wait = asm.here();
                asm.emit(lw(T[0], WRITES, S[9]));
                asm.branch(When::Ne, T[0], answers, wait);
                asm.emit(addi(written, written, 1));
                Self::tell(asm, self.flags.written, written);
            });
        });
    }
}

/// A load from memory, or a store to it.
type Access = fn(Reg, i32, Reg) -> u32;

/// Which way the network moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Bring,
    Write,
}

/// T0's registers: the words that choose rows and columns, how many squares there are in K and in the group, the place
/// of the chunk, and what half a square and a whole one add to the word of columns.
const LEFT_ROW: Reg = A[1];
const LEFT_COLUMN: Reg = A[2];
const RIGHT_ROW: Reg = A[3];
const RIGHT_COLUMN: Reg = A[4];
const STEPS: Reg = A[5];
const WIDTH: Reg = A[6];
const PLACE: Reg = A[7];
const UNPACK_HALF: Reg = S[10];
const UNPACK_SIDE: Reg = S[11];
/// Where T0 and T1 store instructions that are not constants.
const INSTRUCTIONS: Reg = T[6];

/// The registers that a function keeps, on the stack.
fn kept() -> impl Iterator<Item = (Reg, i32)> {
    std::iter::once(RA).chain(S).zip((0..).step_by(4))
}

const FRAME: i32 = 64;

fn enter(asm: &mut Assembler) {
    asm.emit(addi(SP, SP, -FRAME));
    kept().for_each(|(register, at)| asm.emit(sw(register, at, SP)));
    kept().last().into_iter().for_each(|(_, at)| load_back(asm, lw, SP, at));
}

fn leave(asm: &mut Assembler) {
    kept().for_each(|(register, at)| asm.emit(lw(register, at, SP)));
    asm.emit_all([addi(SP, SP, FRAME), jalr(ZERO, RA, 0)]);
}

/// Loads what was stored last back, and uses it: so that is in memory, and what was stored before, when a transfer
/// begins.
fn load_back(asm: &mut Assembler, load: Access, base: Reg, offset: i32) {
    asm.emit_all([load(Reg::TP, offset, base), addi(Reg::TP, Reg::TP, 0)]);
}

/// Makes a register no larger than another.
fn at_most(asm: &mut Assembler, value: Reg, limit: Reg) {
    let fits = asm.label();
    asm.branch(When::Geu, limit, value, fits);
    asm.emit(addi(value, limit, 0));
    asm.bind(fits);
}

/// Where a chunk whose bytes are at A0 in DRAM goes, in A1: a place of so many rows, as far behind 64 bytes as there.
fn target(asm: &mut Assembler, places: &Rows, rows: u32, place: Reg) {
    asm.constant(T[2], rows * places.pitch);
    asm.emit_all([mul(A[1], place, T[2]), andi(T[3], A[0], 63), add(A[1], A[1], T[3])]);
    asm.constant(T[2], places.at);
    asm.emit(add(A[1], A[1], T[2]));
}

/// Goes on to the next of so many places.
fn next_place(asm: &mut Assembler, place: Reg, places: u32) {
    let inside = asm.label();
    asm.emit(addi(place, place, 1));
    asm.constant(T[0], places);
    asm.branch(When::Ltu, place, T[0], inside);
    asm.emit(addi(place, ZERO, 0));
    asm.bind(inside);
}

/// Tells the engine an instruction that is a constant: the core stores it by an instruction of its own, which is that
/// word turned by two bits (`PushTensixInstruction.md`).
fn tell_engine(asm: &mut Assembler, word: u32) {
    asm.emit(word.rotate_left(2));
}

/// Waits for the end of everything that this core has told the engine (`TTSync.md`: a store comes first, and the load
/// is used).
fn wait_for_engine(asm: &mut Assembler) {
    asm.constant(T[0], engine::DONE_CHECK);
    asm.emit_all([sw(ZERO, 0, T[0]), lw(T[1], 0, T[0]), andi(T[1], T[1], 0)]);
}

/// Configures a thread: waits for what is left of it first, since its loop must not change meanwhile.
fn start(asm: &mut Assembler, config: &[(u32, u32)], expand: &[u32; 9], words: &[u32]) {
    wait_for_engine(asm);
    asm.constant(INSTRUCTIONS, engine::INSTRUCTIONS);
    asm.constant(T[0], engine::MOP_CONFIG);
    for (word, at) in expand.iter().zip((0..).step_by(4)) {
        asm.constant(T[1], *word);
        asm.emit(sw(T[1], at, T[0]));
    }
    for (address, value) in config {
        asm.constant(T[0], *address);
        asm.constant(T[1], *value);
        asm.emit(sw(T[1], 0, T[0]));
    }
    words.iter().for_each(|word| tell_engine(asm, *word));
}

/// Unpacks a square: so many rows of the columns and the rows that the words choose, and so many columns of these.
fn square(asm: &mut Assembler, operand: Operand, (columns, row): (Reg, Reg), (rows, width): (u32, u32)) {
    let halves = [width.min(engine::ROW), width.saturating_sub(engine::ROW)];
    let halves: Vec<u32> = halves.into_iter().filter(|half| *half > 0).collect();
    let full = operand.columns(engine::ROW);
    for (number, half) in (0_u32..).zip(&halves) {
        let last = number as usize + 1 == halves.len();
        // Columns that are not there are left out of the word.
        let less = full - operand.columns(*half);
        match (number, less) {
            (0, 0) => asm.emit(sw(columns, 0, INSTRUCTIONS)),
            _ => {
                if number == 0 {
                    asm.emit(addi(T[0], columns, 0));
                } else {
                    asm.emit(add(T[0], columns, UNPACK_HALF));
                }
                if less != 0 {
                    asm.constant(T[1], less);
                    asm.emit(sub(T[0], T[0], T[1]));
                }
                asm.emit(sw(T[0], 0, INSTRUCTIONS));
            }
        }
        asm.emit(sw(row, 0, INSTRUCTIONS));
        tell_engine(asm, operand.target(number * SIDE));
        let looped = if last { rows - 1 } else { rows };
        if looped > 0 {
            tell_engine(asm, operand.rows(looped));
        }
        if last {
            tell_engine(asm, operand.unpack(true));
        }
    }
}
