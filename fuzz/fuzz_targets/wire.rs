//! Any bytes of another host are read as a greeting, frames and a listing without harm.
#![no_main]

use fullbore::storage::wire::{greet, list, read_frames};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    greet(bytes);
    list(bytes);
    read_frames(bytes);
    // Most bytes are no lengths: as the header of a frame without data they come to the messages.
    let lengths = [bytes.len() as u32, 0].map(u32::to_le_bytes).concat();
    read_frames(&[&lengths, bytes].concat());
});
