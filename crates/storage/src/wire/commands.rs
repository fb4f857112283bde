//! The services of commands: this program is run on the other side with arguments of this one, and prints here.

use super::offer::{WireService, answer_by};
use super::peer::PeerSide;
use fullbore_format::error::Result;
use fullbore_wire::message::{decode, encode};
use minicbor::bytes::ByteVec;
use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
};

/// Values in the arguments of a command at most.
const MAX_ARGUMENTS: usize = 1 << 16;

/// Returns the service that runs commands for the other side. `run` gets the arguments and returns the exit code.
pub fn command_service(
    run: impl Fn(Vec<OsString>, &PeerSide) -> Result<u8> + Send + Sync + 'static,
) -> impl WireService + 'static {
    answer_by(move |question, peer| {
        let code = run(decode_arguments(question)?, peer)?;
        Ok(vec![code])
    })
}

/// Returns the service that prints for a command of this side that runs on the other one.
pub fn print_service(
    print: impl Fn(&[u8]) -> Result<()> + Send + Sync + 'static,
) -> impl WireService + 'static {
    answer_by(move |question, _| print(question).map(|()| Vec::new()))
}

fn decode_arguments(bytes: &[u8]) -> Result<Vec<OsString>> {
    let words: Vec<ByteVec> = decode(bytes, MAX_ARGUMENTS)?;
    let words = words.into_iter();
    Ok(words.map(|word| OsString::from_vec(word.into())).collect())
}

/// Returns the arguments of a command as they are sent.
pub(super) fn encode_arguments(arguments: &[OsString]) -> Vec<u8> {
    let words = arguments
        .iter()
        .map(|argument| ByteVec::from(argument.as_bytes().to_vec()));
    encode(&words.collect::<Vec<_>>())
}
