// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Messages to the device and their answers (`qaic_manage_ioctl`, `qaic_manage`).

use super::encode::{MessageTransfer, Resources};
use crate::machine::{Guard, Machine};
use emulator_core::drm::{give, take};
use emulator_core::{Errno, Process};
use hal_qaic_abi::nnc::Malformed;
use hal_qaic_abi::nnc::user;
use hal_qaic_abi::nnc::wire::{FromDevice, Message};
use hal_qaic_abi::uapi::{MESSAGE_MAX, ManageMessage, TRANSACTIONS_MAX};

impl Machine {
    /// `qaic_manage_ioctl`: the answer overwrites the message, also if the device refuses it.
    pub(crate) fn manage(
        &self,
        process: &dyn Process,
        number: usize,
        user: u32,
        argument: &mut [u8],
    ) -> Result<(), Errno> {
        let request: ManageMessage = take(argument)?;
        let length = usize::try_from(request.len).map_err(|_| Errno::INVAL)?;
        if length > MESSAGE_MAX {
            return Err(Errno::INVAL);
        }
        {
            let state = self.lock();
            state.cards[number].online()?;
        }
        let mut message = vec![0; length];
        process.read(request.data, &mut message)?;
        if request.count as usize > TRANSACTIONS_MAX {
            return Err(Errno::INVAL);
        }
        let mut state = self.lock();
        state.cards[number].online()?;
        let mut resources = Resources::default();
        let (mut answer, mut count) = (user::Message::new(), 0);
        let result = self.exchange(
            process,
            &mut state,
            (number, user),
            (&message, request.count),
            &mut resources,
            (&mut answer, &mut count),
        );
        let card = &mut state.cards[number];
        card.bus.unmap(&resources.segments);
        // `free_dbc_buf`: rings that no channel took.
        if let Some(rings) = resources.rings.take() {
            card.bus.unmap(&[rings.segment]);
        }
        drop(state);
        if matches!(result, Ok(()) | Err(Errno::CANCELED)) {
            let bytes = answer.bytes();
            process.write(request.data, bytes)?;
            let len = u32::try_from(bytes.len()).map_err(|_| Errno::INVAL)?;
            give(argument, &ManageMessage { len, count, data: request.data });
        }
        result
    }

    /// `qaic_manage_msg_xfer`: sends a message, repeatedly for a long transfer, and reads the answer.
    fn exchange(
        &self,
        process: &dyn Process,
        state: &mut Guard<'_>,
        who: (usize, u32),
        message: (&[u8], u32),
        resources: &mut Resources,
        (answer, count): (&mut user::Message, &mut u32),
    ) -> Result<(), Errno> {
        let (number, user) = who;
        let mut transactions = match self.encode(process, state, who, message, resources) {
            Ok(transactions) => transactions,
            // `qaic_manage_msg_xfer`: once a transfer has a number of its chunks, the device aborts it, and the
            // device's answer to that is the program's.
            Err(error) => resources.transfer.as_ref().map(MessageTransfer::abort).ok_or(error)?,
        };
        loop {
            let bytes = self.send(state, number, user, transactions, true)?;
            let reply =
                Message::<FromDevice>::read(&bytes, self.options.crc).map_err(
                    |malformed| match malformed {
                        Malformed::Checksum { .. } => Errno::PIPE,
                        _ => Errno::INVAL,
                    },
                )?;
            match (reply.transactions.as_slice(), &mut resources.transfer) {
                (&[FromDevice::DmaContinue { chunk, transferred }], transfer) => {
                    // An answer with another number or channel does not match.
                    let expected = |transfer: &&mut super::encode::MessageTransfer| {
                        (transfer.chunk, transfer.sent) == (chunk, transferred)
                    };
                    let transfer = transfer.as_mut().filter(expected).ok_or(Errno::INVAL)?;
                    transactions = transfer.continue_with();
                }
                _ => {
                    *count = u32::try_from(reply.transactions.len()).unwrap_or(u32::MAX);
                    let decoded = self.decode(state, who, reply, resources, answer);
                    // The device has memory, and this host has none for it.
                    let starved = state.cards[number].server.starved.take_if(|(starved, _)| *starved == user);
                    return starved.map_or(decoded, |(_, errno)| Err(errno));
                }
            }
        }
    }
}
