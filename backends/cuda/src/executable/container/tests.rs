// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

use super::*;
use hal_backend::Code;
use proptest::prelude::*;

#[path = "../../../tests/common/container.rs"]
mod write;

fn refused(bytes: &[u8]) -> (Code, String) {
    let failure = Container::read(bytes).unwrap_err().failure(FORMAT);
    (failure.code(), failure.message().to_owned())
}

fn sample() -> Vec<u8> {
    let mut named = write::Export::new("second_kernel", 32, 3, 2);
    named.name = Some("second".to_owned());
    named.shared = 1024;
    named.module = 1;
    write::build(&["// one", "// two"], &[write::Export::new("first", 64, 1, 0), named])
}

#[test]
fn container_has_what_was_written() {
    let container = sample();
    let container = Container::read(&container).unwrap();
    assert_eq!(container.modules, ["// one", "// two"]);
    let [first, second] = container.exports.as_slice() else { panic!("two exports") };
    assert_eq!((first.kernel, first.name, first.block, first.bindings), ("first", "first", [64, 1, 1], 1));
    assert_eq!((second.kernel, second.name, second.shared), ("second_kernel", "second", 1024));
    assert_eq!((second.module, second.constants, second.bindings), (1, 2, 3));
}

#[test]
fn length_is_inferred_from_the_header() {
    let mut bytes = sample();
    let length = bytes.len() as u64;
    bytes.extend([0; 9]);
    assert_eq!(infer(&bytes), Some(Inferred { format: CACHE_FORMAT.to_owned(), length }));
    assert!(Container::read(&bytes).is_ok());
    assert_eq!(infer(b"\x7fELF"), None);
    assert_eq!(infer(&[]), None);
}

#[test]
fn what_is_no_container_or_damaged_is_refused_with_the_place() {
    let says = |bytes: &[u8], code: Code, part: &str| {
        let (found, message) = refused(bytes);
        assert!(found == code && message.contains(part), "{found:?} {message}");
    };
    says(b"", Code::Incompatible, "--iree-hal-target-device=cuda");
    says(&[0x7f; 100], Code::Incompatible, "CDA1");
    let sample = sample();
    says(&sample[..sample.len() - 1], Code::InvalidArgument, "truncated");
    says(&write::with_header(&[0; 40]), Code::Incompatible, "CDA1");
    let mut export = write::Export::new("k", 1, 0, 0);
    export.module = 1;
    says(&write::build(&["x"], &[export]), Code::InvalidArgument, "export 0: module 1 does not exist");
    let mut export = write::Export::new("k", 1, 0, 0);
    export.block = None;
    says(&write::build(&["x"], &[export.clone()]), Code::InvalidArgument, "export 0: no block dimensions");
    export.block = Some([1, 0, 1]);
    says(&write::build(&["x"], &[export]), Code::InvalidArgument, "[1, 0, 1]");
    says(&write::build(&["x"], &[write::Export::new("", 1, 0, 0)]), Code::InvalidArgument, "no name");
    says(&write::build(&["x"], &[write::Export::new("k", 1, 0, 65)]), Code::Unimplemented, "65 constants");
    says(&write::build(&["x"], &[write::Export::new("k", 1, 257, 0)]), Code::Unimplemented, "257 bindings");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn fuzz_damaged_containers_are_read_or_refused(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = sample();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = Container::read(&bytes);
        let _ = Container::read(&bytes[..cut.index(bytes.len())]);
    }
}
