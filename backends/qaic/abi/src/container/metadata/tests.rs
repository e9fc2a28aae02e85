// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Metadata in its three forms, and bytes that are none.

use super::*;
use crate::container::ParseErrorKind;
use proptest::prelude::*;

pub(in crate::container) fn network() -> Network {
    let request = |buffer, direction, host_offset, size| Request {
        buffer,
        direction,
        host_offset,
        device_offset: 0x1000 * u64::from(buffer),
        size,
        space: Space::Ddr,
        semaphores: Vec::new(),
        doorbell: None,
    };
    let arrive = Semaphore { val: 1, index: 0, cmd: sem::INC, ..Semaphore::default() };
    let depart = Semaphore {
        index: 1,
        cmd: sem::WAIT_GT_0,
        presync: 1,
        flags: sem::OUT_SYNC_FENCE,
        ..Semaphore::default()
    };
    Network {
        version: METADATA,
        name: "two in, one out".to_owned(),
        cores: 4,
        hardware: HARDWARE,
        semaphores: vec![0, 3],
        ddr: 0x4000,
        requests: vec![
            Request { semaphores: vec![arrive], ..request(0, Direction::In, 0, 256) },
            Request { space: Space::Multicast(3), ..request(0, Direction::In, 256, 64) },
            Request {
                semaphores: vec![arrive, arrive],
                doorbell: Some(Doorbell { offset: 0x40, data: 7, group: 2, bits: 16 }),
                ..request(1, Direction::In, 0, 32)
            },
            Request { semaphores: vec![depart], ..request(2, Direction::Out, 0, 4096) },
        ],
    }
}

/// The plain structure that says what [`network`] says.
#[expect(clippy::too_many_lines, reason = "a file, field after field")]
fn plain(network: &Network) -> Vec<u8> {
    let mut bytes = vec![0; 200];
    let mut tail = Vec::new();
    let mut add = |piece: &[u8]| {
        let at = 200 + tail.len();
        tail.extend_from_slice(piece);
        tail.resize(tail.len().next_multiple_of(8), 0);
        at as u64
    };
    let mut requests = Vec::new();
    for request in &network.requests {
        let semaphores: Vec<u8> = request
            .semaphores
            .iter()
            .flat_map(|one| {
                let [n, _] = u16::from(one.index).to_le_bytes();
                let [v0, v1] = one.val.to_le_bytes();
                [n, 0, v0, v1, one.cmd, one.presync, one.flags >> 1 & 1, one.flags & 1]
            })
            .collect();
        let doorbell: Vec<u8> = request.doorbell.iter().fold(Vec::new(), |_, one| {
            let size = [8, 16, 32].into_iter().position(|bits| bits == one.bits).unwrap();
            let size = u8::try_from(size).unwrap();
            let group = one.group.to_le_bytes();
            [&one.offset.to_le_bytes()[..], &one.data.to_le_bytes(), &group, &[size, 0]].concat()
        });
        let (space, group) = match request.space {
            Space::Multicast(group) => (0, group),
            Space::Ddr => (1, 0),
        };
        for number in [add(&semaphores), add(&doorbell), request.host_offset, request.device_offset] {
            requests.extend_from_slice(&number.to_le_bytes());
        }
        requests.extend_from_slice(&request.size.to_le_bytes());
        requests.extend_from_slice(&[request.buffer.to_le_bytes(), group.to_le_bytes()].concat());
        let semaphores = u8::try_from(request.semaphores.len()).unwrap();
        let counts = [semaphores, u8::from(request.doorbell.is_some())];
        requests.extend_from_slice(&[
            counts[0],
            counts[1],
            space,
            u8::from(request.direction == Direction::Out),
        ]);
        requests.extend_from_slice(&[0; 4]);
    }
    let semaphores: Vec<u8> = network.semaphores.iter().flat_map(|value| value.to_le_bytes()).collect();
    let places = [
        (8, add(&[network.name.as_bytes(), b"\0"].concat())),
        (16, add(&semaphores)),
        (32, add(&requests)),
        (72, network.ddr),
    ];
    for (at, value) in places {
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    bytes[..4].copy_from_slice(&PLAIN.to_le_bytes());
    let half = |length: usize| u16::try_from(length).unwrap();
    let counts = [(124, half(network.semaphores.len())), (126, half(network.requests.len()))];
    for (at, value) in [(122, network.cores)].into_iter().chain(counts) {
        bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    bytes[132..134].copy_from_slice(
        &[network.hardware.major, network.hardware.minor].map(|number| u8::try_from(number).unwrap()),
    );
    [bytes, tail].concat()
}

#[test]
fn all_forms_say_the_same() {
    let network = network();
    let flat = network.write();
    assert_eq!(Network::read(&network.image()).unwrap(), network);
    let old = |bytes: &[u8]| Network::read(&elf::write(HEXAGON, &[(COMPILER_SECTION, bytes)]));
    assert_eq!(old(&flat).unwrap(), network);
    let stopped = [&STOPPER.to_le_bytes()[..], &flat].concat();
    assert_eq!(old(&stopped).unwrap(), network);
    assert_eq!(old(&plain(&network)).unwrap(), Network { version: OLD, ..network.clone() });
    let before = Network { version: OLD, ..network.clone() };
    assert_eq!(Network::read(&before.image()).unwrap(), before);
    // Of two sections the newer one counts.
    let both = elf::write(HEXAGON, &[(COMPILER_SECTION, b"nonsense"), (SECTION, &flat)]);
    assert_eq!(Network::read(&both).unwrap(), network);
}

/// What the writer of the vendor's compiler (`MetadataFlatbufferWriter` of the public
/// software-kit-for-qualcomm-cloud-ai-100-cc) made of [`network`].
const COMPILER: &[u8] = include_bytes!("compiler_1_0.bin");

#[test]
fn what_the_vendor_s_compiler_writes_is_read() {
    for section in [COMPILER_SECTION, SECTION] {
        let image = elf::write(HEXAGON, &[(section, COMPILER)]);
        assert_eq!(Network::read(&image).unwrap(), network(), "{section}");
    }
}

#[test]
fn image_of_another_kind_is_refused() {
    let refused = Network::read(&elf::write(62, &[(".text", b"x")])).unwrap_err();
    assert!(refused.to_string().contains("metadata_fb"), "{refused}");
    let mut builder = FlatBufferBuilder::new();
    let table = builder.start_table();
    builder.push_slot_always(slot(field::VERSION_MAJOR), 3_u16);
    let root = builder.end_table(table);
    builder.finish_minimal(root);
    let refused = Network::read(&elf::write(HEXAGON, &[(SECTION, builder.finished_data())])).unwrap_err();
    assert_eq!(refused.kind(), ParseErrorKind::Incompatible);
    assert!(refused.to_string().contains("version 3.0"), "{refused}");
}

#[test]
fn field_that_must_be_understood_is() {
    for name in [
        "AicMetadataFlat_Metadata->dmaRequests->doorbellOps->mcId",
        "AicMetadataFlat_Metadata->dmaRequests->inOut|inOut:8:uint8",
        "AicMetadataFlat_Metadata->networkHeapBehavior",
    ] {
        assert!(check_required(name).is_ok(), "{name}");
    }
    let refused = check_required("AicMetadataFlat_Metadata->dmaRequests->sparsity").unwrap_err();
    assert!(refused.to_string().contains("\"sparsity\""), "{refused}");
}

#[test]
fn request_that_the_hardware_cannot_do_is_refused_with_its_number() {
    let refused = |change: fn(&mut Request)| {
        let mut network = network();
        change(&mut network.requests[2]);
        Network::read(&network.image()).unwrap_err().to_string()
    };
    let presync = refused(|request| request.semaphores.iter_mut().for_each(|one| one.presync = 1));
    assert!(presync.starts_with("metadata: DMA request 2: 2 semaphores before"), "{presync}");
    assert!(refused(|request| request.semaphores[0].index = 32).contains("semaphore 32"));
    assert!(refused(|request| request.semaphores[0].cmd = 7).contains("command 7"));
    assert!(refused(|request| request.semaphores[0].val = 4096).contains("with 4096"));
    let aside =
        refused(|request| request.doorbell = Some(Doorbell { offset: 0x41, data: 0, group: 0, bits: 16 }));
    assert!(aside.contains("a doorbell of 16 bits at 0x41"), "{aside}");
    let many = refused(|request| request.semaphores = vec![request.semaphores[0]; 5]);
    assert!(many.contains("semaphores: 5 of them, and 4 is the most"), "{many}");
    // Values that the structures here cannot hold go to the functions that read them.
    assert!(direction(2).is_err() && space(2, 0).is_err() && doorbell(0, 0, 0, 3).is_err());
}

proptest! {
    #[test]
    fn fuzz_no_change_makes_it_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        for bytes in [network().write(), plain(&network())] {
            let mut bytes = bytes;
            for (at, byte) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            let _ = Network::read(&elf::write(HEXAGON, &[(COMPILER_SECTION, &bytes)]));
            let _ = Network::read_flat(&bytes);
            let _ = Network::read_plain(&bytes);
        }
    }

    #[test]
    fn fuzz_no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Network::read_flat(&bytes);
        let _ = Network::read_plain(&bytes);
    }
}
