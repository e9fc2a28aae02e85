// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The cards in the file system: on the bus, in their class, their telemetry, and the processes that have one open.

use crate::machine::Machine;
use crate::silicon::Silicon;
use crate::window;
use emulator_chip::{BLACKHOLE, Family, Tile};
use emulator_core::Errno;
use emulator_core::devices::{ClassDevice, PROCESSING_ACCELERATOR, PciFunction, ShownDevices};
use hal_tenstorrent_abi::paths;
use hal_tenstorrent_abi::uapi::VENDOR;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The kernel module.
const DRIVER: &str = "tenstorrent";

/// The major number that the module gets for its nodes.
const MAJOR: u32 = 241;

/// The module's version.
const VERSION: &str = "/sys/module/tenstorrent/version";

/// The numbers of sensors begin here, behind those that a machine has.
const SENSORS: usize = 64;

/// Tags of telemetry (`enum tt_telemetry_tags`).
mod tag {
    pub(super) const BOARD: u16 = 1;
    pub(super) const ETHERNET: u16 = 24;
    pub(super) const CHIP: u16 = 61;
}

/// How an attribute is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// `tt_sysfs_show_u32_dec`
    Number,
    /// `tt_sysfs_show_u64_hex`, of two tags.
    Hexadecimal,
    /// `tt_sysfs_show_u32_ver`
    Version,
    /// `tt_sysfs_show_card_type`
    Board,
}

/// An attribute: its name, the tag of telemetry that it shows, and how. One whose tag the firmware does not have is not
/// there (`tt_sysfs_telemetry_is_visible`).
type Attribute = (&'static str, u16, Shown);

/// The attributes of both kinds of chip, and those of one (`bh_sysfs_attributes`, `wh_sysfs_attributes`).
const ALL: &[Attribute] = &[
    ("tt_aiclk", 14, Shown::Number),
    ("tt_axiclk", 15, Shown::Number),
    ("tt_arcclk", 16, Shown::Number),
    ("tt_serial", tag::BOARD, Shown::Hexadecimal),
    ("tt_card_type", tag::BOARD, Shown::Board),
    ("tt_fw_bundle_ver", 28, Shown::Version),
    ("tt_m3app_fw_ver", 26, Shown::Version),
    ("tt_asic_id", tag::CHIP, Shown::Hexadecimal),
    ("tt_heartbeat", 32, Shown::Number),
];
const BLACKHOLES: &[Attribute] = &[("tt_therm_trip_count", 60, Shown::Number)];
const WORMHOLES: &[Attribute] = &[
    ("tt_ttflash_ver", 58, Shown::Version),
    ("tt_m3bl_fw_ver", 27, Shown::Version),
    ("tt_arc_fw_ver", 29, Shown::Version),
    ("tt_eth_fw_ver", tag::ETHERNET, Shown::Version),
];

/// The labels of sensors, which are there whether the firmware measures them or not (`tt_hwmon_is_visible`).
const BLACKHOLE_LABELS: &[(&str, &str)] = &[
    ("temp1_label", "asic_temp"),
    ("in0_label", "vcore"),
    ("curr1_label", "current"),
    ("power1_label", "power"),
    ("fan1_label", "fan_rpm"),
];
const WORMHOLE_LABELS: &[(&str, &str)] = &[
    ("temp1_label", "asic1_temp"),
    ("in0_label", "vcore1"),
    ("curr1_label", "current1"),
    ("power1_label", "power1"),
];

/// The number in a sensor's file, of the firmware's.
type Convert = fn(u64) -> u64;

/// The sensors and limits of each kind, by the tags of telemetry and how the driver converts what it reads
/// (`tt_hwmon_read`).
const SENSOR_FILES: &[(&str, u16, Convert)] = &[
    ("temp1_input", 11, |raw| (raw >> 16) * 1000 + (raw & 0xffff) * 1000 / 0x10000),
    ("temp1_max", 56, |raw| raw * 1000),
    ("in0_input", 6, |raw| raw),
    ("in0_max", 9, |raw| raw >> 16 & 0xffff),
    ("curr1_input", 8, |raw| raw * 1000),
    ("curr1_max", 55, |raw| raw * 1000),
    ("power1_input", 7, |raw| raw * 1_000_000),
    ("power1_max", 64, |raw| raw * 1_000_000),
    ("fan1_input", 41, |raw| raw),
];

/// The names of boards, by their number (`tt_sysfs_show_card_type`).
const BOARDS: &[(u32, &str)] = &[
    (0x14, "n300"),
    (0x18, "n150"),
    (0x36, "p100"),
    (0x40, "p150a"),
    (0x41, "p150b"),
    (0x42, "p150c"),
    (0x43, "p100a"),
];

/// A card on the bus.
pub(crate) fn function(family: &Family, number: usize) -> PciFunction {
    PciFunction {
        bus: u8::try_from(number + 1).unwrap_or(u8::MAX),
        ids: [VENDOR, family.device, VENDOR, 0x40],
        class: PROCESSING_ACCELERATOR,
        // Software takes a Wormhole of another revision for one that it does not know.
        revision: u8::from(!is_blackhole(family)),
        regions: family.regions,
        has_iommu: true,
        attributes: Vec::new(),
    }
}

/// The firmware's telemetry (`blackhole_populate_telemetry_cache` and the same of Wormhole).
struct Telemetry<'a> {
    chip: &'a Silicon,
    /// The tags, each with the address of its value.
    tags: Vec<(u16, u64)>,
}

impl<'a> Telemetry<'a> {
    /// The controller, where it begins on the network, and the registers with the addresses of the table and the
    /// values.
    fn controller(family: &Family) -> (Tile, u64, [u64; 2]) {
        if *family == BLACKHOLE {
            (Tile { x: 8, y: 0 }, 0, [0x8003_0434, 0x8003_0430])
        } else {
            (Tile { x: 0, y: 10 }, 0x8_0000_0000, [0x8003_01d0, 0x8003_01d4])
        }
    }

    fn word(chip: &Silicon, address: u64) -> Option<u32> {
        let (tile, base, _) = Self::controller(chip.family());
        window::read_word(chip, tile, base + address).ok()
    }

    fn new(chip: &'a Silicon) -> Option<Self> {
        let (_, _, [table, values]) = Self::controller(chip.family());
        let table = u64::from(Self::word(chip, table)?);
        let values = u64::from(Self::word(chip, values)?);
        let count = u64::from(Self::word(chip, table + 4)?);
        let entry = |index: u64| {
            let entry = Self::word(chip, table + 8 + 4 * index)?;
            let [tag, place] = [entry & 0xffff, entry >> 16];
            Some((u16::try_from(tag).ok()?, values + 4 * u64::from(place)))
        };
        Some(Self { chip, tags: (0..count.min(256)).filter_map(entry).collect() })
    }

    fn value(&self, tag: u16) -> Option<u32> {
        let (_, address) = self.tags.iter().find(|(known, _)| *known == tag)?;
        Self::word(self.chip, *address)
    }

    fn text(&self, tag: u16, shown: Shown) -> Option<String> {
        let value = self.value(tag)?;
        let [major, minor, patch, build] = value.to_be_bytes();
        Some(match shown {
            Shown::Number => format!("{value}\n"),
            Shown::Hexadecimal => format!("{value:08X}{:08X}\n", self.value(tag + 1)?),
            // The version of Ethernet's firmware is packed in another way.
            Shown::Version if tag == tag::ETHERNET => {
                format!("{minor}.{}.{}\n", value >> 12 & 0xf, value & 0xfff)
            }
            Shown::Version => format!("{major}.{minor}.{patch}.{build}\n"),
            Shown::Board => {
                let board = value >> 4 & 0xffff;
                let name =
                    BOARDS.iter().find(|(number, _)| *number == board).map_or("unknown", |(_, name)| name);
                format!("{name}\n")
            }
        })
    }
}

fn is_blackhole(family: &Family) -> bool {
    *family == BLACKHOLE
}

fn attributes(family: &Family) -> impl Iterator<Item = &'static Attribute> {
    ALL.iter().chain(if is_blackhole(family) { BLACKHOLES } else { WORMHOLES })
}

fn labels(family: &Family) -> &'static [(&'static str, &'static str)] {
    if is_blackhole(family) { BLACKHOLE_LABELS } else { WORMHOLE_LABELS }
}

impl Machine {
    /// The text of a file of a card, by its path in the class, of its list of processes, or of the module's version.
    pub(crate) fn attribute(&self, path: &Path) -> Result<String, Errno> {
        if path == Path::new(VERSION) {
            return Ok(format!("{}\n", self.options.module));
        }
        if let Ok(inside) = path.strip_prefix(paths::STATES) {
            let (number, file) =
                inside.to_str().and_then(|inside| inside.split_once('/')).ok_or(Errno::NOENT)?;
            let number = number.parse().map_err(|_| Errno::NOENT)?;
            return if file == paths::USERS { self.processes(number) } else { Err(Errno::NOENT) };
        }
        let (number, file) = paths::file(path).ok_or(Errno::NOENT)?;
        let board = {
            let state = self.lock();
            let card = state.cards.find(number).filter(|card| !card.detached).ok_or(Errno::NOENT)?;
            if card.needs_init && file.starts_with("device/tt_") {
                return Err(Errno::NODATA);
            }
            card.board.clone()
        };
        let family = board.chip.family();
        if let Some(file) = file.strip_prefix("hwmon/") {
            return sensor(&board.chip, file).ok_or(Errno::NOENT);
        }
        let file = file.strip_prefix("device/").ok_or(Errno::NOENT)?;
        if let Some((_, tag, shown)) = attributes(family).find(|(name, ..)| *name == file) {
            return Telemetry::new(&board.chip).and_then(|read| read.text(*tag, *shown)).ok_or(Errno::NOENT);
        }
        let bytes = function(family, number).file(file, DRIVER).ok_or(Errno::NOENT)?;
        String::from_utf8(bytes).map_err(|_| Errno::NOENT)
    }

    /// The processes that have a card open, a line for each file, the last one first (`pids_proc_show`).
    fn processes(&self, number: usize) -> Result<String, Errno> {
        self.release_closed();
        let state = self.lock();
        state.cards.find(number).filter(|card| !card.detached).ok_or(Errno::NOENT)?;
        let mut files: Vec<_> = state.open.values().filter(|file| file.card == number).collect();
        files.sort_unstable_by_key(|file| std::cmp::Reverse(file.number));
        let mut text = String::new();
        for file in files {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{}", file.process);
        }
        Ok(text)
    }

    /// What the system shows of the cards.
    pub(crate) fn shown(&self) -> ShownDevices {
        let present = self.present();
        let files = vec![VERSION.into()];
        let mut shown = ShownDevices { driver: DRIVER, files, ..ShownDevices::default() };
        for (place, &number) in present.iter().enumerate() {
            let board = self.lock().cards[number].board.clone();
            let (family, telemetry) = (board.chip.family(), Telemetry::new(&board.chip));
            let has = |tag| telemetry.as_ref().is_some_and(|read| read.value(tag).is_some());
            let folder = Path::new(paths::CLASS).join(format!("{}{number}", paths::PREFIX));
            let visible = attributes(family).filter(|(_, tag, _)| has(*tag));
            let attributes = visible.map(|(name, ..)| (*name, folder.join("device").join(name))).collect();
            shown.functions.push(PciFunction { attributes, ..function(family, number) });
            shown.devices.push(ClassDevice {
                class: DRIVER,
                name: format!("{}{number}", paths::PREFIX),
                function: Some(place),
                node: Some((
                    format!("tenstorrent/{number}"),
                    MAJOR,
                    u32::try_from(number).unwrap_or(u32::MAX),
                )),
                uevent: "",
                attributes: Vec::new(),
            });
            let sensors = SENSOR_FILES.iter().filter(|(_, tag, _)| has(*tag)).map(|(name, ..)| *name);
            let names =
                std::iter::once("name").chain(labels(family).iter().map(|(name, _)| *name)).chain(sensors);
            let path = |name: &str| -> PathBuf { folder.join("hwmon").join(name) };
            shown.devices.push(ClassDevice {
                class: "hwmon",
                name: format!("hwmon{}", SENSORS + number),
                function: Some(place),
                node: None,
                uevent: "",
                attributes: names.map(|name| (name.to_owned(), path(name))).collect(),
            });
            shown.files.push(paths::users(u32::try_from(number).unwrap_or(u32::MAX)));
        }
        shown
    }
}

/// The text of a sensor's file.
fn sensor(chip: &Silicon, file: &str) -> Option<String> {
    let family = chip.family();
    if file == "name" {
        return Some(if is_blackhole(family) { "blackhole\n" } else { "wormhole\n" }.to_owned());
    }
    if let Some((_, label)) = labels(family).iter().find(|(name, _)| *name == file) {
        return Some(format!("{label}\n"));
    }
    let (_, tag, convert) = SENSOR_FILES.iter().find(|(name, ..)| *name == file)?;
    Some(format!("{}\n", convert(Telemetry::new(chip)?.value(*tag)?.into())))
}
