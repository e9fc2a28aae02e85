// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The parameters of URIs: pages, `--dump_devices` and refusals list what the drivers declare.

use crate::common::{Device, check, registry, view};
use hal_backend::{Driver, Parameter, Parameters};
use hal_cuda::Nvidia;
use hal_gaudi::Gaudi;
use hal_kernel::Emulation;
use hal_mock::Mock;
use hal_qaic::Qaic;
use hal_semaphore::Code;
use hal_sys as sys;
use hal_template::Template;
use hal_tenstorrent::Tenstorrent;
use std::path::Path;
use std::ptr::null_mut;

/// Checks that a page of `docs/` has the table of some parameters, as their declaration prints it.
fn has_the_table(page: &str, parameters: &[Parameter]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    let table = Parameter::table(parameters);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(&table), "{} does not have the declared table:\n{table}", path.display());
}

#[test]
fn pages_have_the_tables_of_the_declarations() {
    has_the_table("without-a-card.md", Mock::PARAMETERS);
    has_the_table("programs.md", hal_driver::PARAMETERS);
    has_the_table("cuda.md", <Nvidia>::PARAMETERS);
    has_the_table("gaudi.md", <Gaudi>::PARAMETERS);
    has_the_table("qaic.md", <Qaic>::PARAMETERS);
    has_the_table("tenstorrent.md", <Tenstorrent>::PARAMETERS);
}

/// Checks that opening a device takes the parameters that its driver declares, but for those of other kinds of devices.
fn takes_what_it_declares<D: Driver>(path: &str, of_others: &[&str]) {
    let mut parameters = Parameters::new(D::NAME, []);
    parameters.declare(D::PARAMETERS);
    D::create().open(path, &mut parameters).unwrap();
    assert_eq!(parameters.undeclared(), [""; 0], "{}", D::NAME);
    assert_eq!(parameters.untaken(), of_others, "{}", D::NAME);
}

#[test]
fn drivers_take_what_they_declare() {
    takes_what_it_declares::<Mock>("", &[]);
    takes_what_it_declares::<Template>("", &[]);
    takes_what_it_declares::<Gaudi<emulator_gaudi::Emulated>>("emulated", &[]);
    takes_what_it_declares::<Qaic<emulator_qaic::Emulated>>("emulated", &[]);
    takes_what_it_declares::<Tenstorrent<emulator_tenstorrent::Emulated>>("emulated", &["rows"]);
}

/// The names of some parameters, those of every device among them, as a refusal lists them.
fn listed(own: &[Parameter], emulated: &[Parameter]) -> String {
    let all = [own, emulated, hal_driver::PARAMETERS].concat();
    let mut names: Vec<&str> = all.iter().map(|parameter| parameter.name).collect();
    names.sort_unstable();
    names.join(", ")
}

#[test]
fn refusal_by_an_emulated_card_lists_the_emulations_parameters_too() {
    let gaudi = listed(<Gaudi>::PARAMETERS, <emulator_gaudi::Emulated as Emulation<_>>::PARAMETERS);
    let qaic = listed(<Qaic>::PARAMETERS, <emulator_qaic::Emulated as Emulation<_>>::PARAMETERS);
    let tenstorrent =
        listed(<Tenstorrent>::PARAMETERS, <emulator_tenstorrent::Emulated as Emulation<_>>::PARAMETERS);
    for (driver, known) in [("gaudi", gaudi), ("qaic", qaic), ("tenstorrent", tenstorrent)] {
        let says = format!("{driver}: parameter colour is unknown; this device takes {known}");
        let uri = format!("{driver}://emulated?colour=red");
        Device::cannot_be_opened(&uri, Code::InvalidArgument, &says);
    }
}

#[test]
fn an_unknown_parameter_is_refused_with_those_that_are_declared() {
    let known = "collective_check, collective_count, collective_piece, collective_rank, collective_timeout, depth, \
                 reflection, stall_report";
    let says = format!("template: parameter colour is unknown; this device takes {known}");
    Device::cannot_be_opened("template://?colour=red", Code::InvalidArgument, &says);
}

/// The text of `--dump_devices` for the first device of a driver.
fn dump(name: &str) -> String {
    // SAFETY: each object is released once, after its last use; the builder's text is copied before it is freed.
    unsafe {
        let (allocator, mut driver) = (sys::iree_allocator_system(), null_mut());
        check(sys::iree_hal_driver_registry_try_create(registry(), view(name), allocator, &raw mut driver))
            .unwrap();
        let mut builder = sys::iree_string_builder_t::default();
        sys::iree_string_builder_initialize(allocator, &raw mut builder);
        check(sys::iree_hal_driver_dump_device_info(driver, 1, &raw mut builder)).unwrap();
        let text = std::slice::from_raw_parts(builder.buffer.cast(), builder.size);
        let text = String::from_utf8(text.to_vec()).unwrap();
        sys::iree_string_builder_deinitialize(&raw mut builder);
        sys::iree_hal_driver_release(driver);
        text
    }
}

#[test]
fn dumped_devices_list_the_parameters_of_the_driver_and_of_every_device() {
    let emulated = <emulator_qaic::Emulated as Emulation<_>>::PARAMETERS;
    for (driver, title, parameters) in [
        ("mock", "# mock device 0", Mock::PARAMETERS.to_vec()),
        // Its only device where the kernel lists no card is an emulated one.
        ("qaic", "# emulated Cloud AI 100", [<Qaic>::PARAMETERS, emulated].concat()),
    ] {
        let text = dump(driver);
        let parameters = [&parameters, hal_driver::PARAMETERS].concat();
        assert!(text.starts_with(title), "{text}");
        assert!(text.ends_with(&Parameter::help(&parameters)), "{text}");
    }
}
