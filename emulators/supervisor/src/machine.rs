// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The machine of a URI.

use emulator_gaudi as gaudi;
use emulator_qaic as qaic;
#[cfg(target_arch = "x86_64")]
use emulator_tenstorrent as tenstorrent;
use hal_backend::{Code, Failure, Parameters};
use std::sync::Arc;

/// The machines that this program can show.
pub(crate) enum AnyCards {
    Gaudi(Arc<gaudi::Emulator>),
    Qaic(Arc<qaic::Emulator>),
    /// Its windows are mapped by decoding instructions, which is known for one kind of processor.
    #[cfg(target_arch = "x86_64")]
    Tenstorrent(Arc<tenstorrent::Emulator>),
}

/// The machine of a URI such as `gaudi://emulated?cards=2`.
pub(crate) fn open(uri: &str) -> Result<AnyCards, Failure> {
    let unknown = || {
        let message = format!(
            "{uri} names no emulated machine; there are gaudi://emulated, qaic://emulated and, on x86-64, \
             tenstorrent://emulated, with parameters such as ?cards=2"
        );
        Failure::new(Code::InvalidArgument, message)
    };
    let (name, rest) = uri.split_once("://").ok_or_else(unknown)?;
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    if path != "emulated" {
        return Err(unknown());
    }
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let mut parameters = Parameters::new(name, pairs.map(|pair| pair.split_once('=').unwrap_or((pair, ""))));
    match name {
        "gaudi" => {
            let options = gaudi::Options::read(&mut parameters)?;
            parameters.finish()?;
            gaudi::Emulator::new(options).map(AnyCards::Gaudi)
        }
        "qaic" => {
            let options = qaic::Options::read(&mut parameters)?;
            parameters.finish()?;
            qaic::Emulator::new(options).map(AnyCards::Qaic)
        }
        #[cfg(target_arch = "x86_64")]
        "tenstorrent" => {
            let options = tenstorrent::Options::read(&mut parameters)?;
            parameters.finish()?;
            tenstorrent::Emulator::new(options).map(AnyCards::Tenstorrent)
        }
        _ => Err(unknown()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_names_a_machine_or_is_refused_with_what_would_be_right() {
        for uri in
            ["gaudi://emulated", "gaudi://emulated?cards=3&generation=gaudi1", "qaic://emulated?cards=2"]
        {
            assert!(open(uri).is_ok(), "{uri}");
        }
        for uri in ["gaudi", "gaudi://0", "gaudi://emulated/1", "mock://emulated", "://emulated"] {
            let refused = open(uri).err().unwrap();
            assert!(refused.message().contains("gaudi://emulated, qaic://emulated"), "{refused}");
        }
        let refused = open("gaudi://emulated?cards=9").err().unwrap();
        assert!(refused.message().contains("parameter cards"), "{refused}");
        let refused = open("qaic://emulated?colour=red").err().unwrap();
        assert!(refused.message().contains("parameter colour is unknown"), "{refused}");
    }
}
