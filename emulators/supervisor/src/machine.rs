// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The machine of a URI.

use crate::tree::Numbers;
use emulator_core::supervised::Supervised;
use emulator_gaudi as gaudi;
use emulator_qaic as qaic;
use hal_backend::{Code, Failure, Parameters};
use hal_gaudi_abi::uapi::Abi;
use std::sync::Arc;

/// A machine, the name of its kernel driver, and how that driver numbers nodes.
pub(crate) struct SupervisedCards {
    pub(crate) cards: Arc<dyn Supervised>,
    pub(crate) driver: &'static str,
    pub(crate) numbers: Numbers,
}

/// The machine of a URI such as `gaudi://emulated?cards=2`.
pub(crate) fn open(uri: &str) -> Result<SupervisedCards, Failure> {
    let unknown = || {
        let message = format!(
            "{uri} names no emulated machine; there are gaudi://emulated and qaic://emulated, with \
             parameters such as ?cards=2"
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
    let machine = match name {
        "gaudi" => {
            let options = gaudi::Options::read(&mut parameters)?;
            parameters.finish()?;
            let numbers = match options.abi {
                Abi::Drm => Numbers::Accelerators,
                Abi::Old => Numbers::Own,
            };
            SupervisedCards { cards: gaudi::Emulator::new(options)?, driver: "habanalabs", numbers }
        }
        "qaic" => {
            let options = qaic::Options::read(&mut parameters)?;
            parameters.finish()?;
            SupervisedCards {
                cards: qaic::Emulator::new(options)?,
                driver: "qaic",
                numbers: Numbers::Accelerators,
            }
        }
        _ => return Err(unknown()),
    };
    Ok(machine)
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
            assert!(refused.message().contains("gaudi://emulated and qaic://emulated"), "{refused}");
        }
        let refused = open("gaudi://emulated?cards=9").err().unwrap();
        assert!(refused.message().contains("parameter cards"), "{refused}");
        let refused = open("qaic://emulated?colour=red").err().unwrap();
        assert!(refused.message().contains("parameter colour is unknown"), "{refused}");
    }
}
