//! Any bytes of another host are read as a greeting, frames, a listing and a certificate without harm, and take memory in
//! proportion to their length.
#![no_main]

use fullbore_fuzz::{
    budget::{CountedMemory, within},
    wire::{decode_values, greet, list, name_certificate, read_frames, read_object_words},
};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static MEMORY: CountedMemory = CountedMemory;

/// Bytes of memory for a byte of input at most, and for the texts of errors: an object of a listing has 56 bytes and its key, and its list
/// grows by doubling.
const BYTES_PER_BYTE: usize = 48;
const FEW_BYTES: usize = 64 << 10;

fuzz_target!(|bytes: &[u8]| {
    // A frame may claim 1 MiB, which is taken before it comes.
    within((1 << 20) + FEW_BYTES + BYTES_PER_BYTE * bytes.len(), || {
        greet(bytes);
        list(bytes);
        read_frames(bytes);
        name_certificate(bytes);
        read_object_words(bytes);
        decode_values(bytes);
        // Most bytes are no lengths: as the header of a frame without data they come to the messages.
        let lengths = [bytes.len() as u32, 0].map(u32::to_le_bytes).concat();
        read_frames(&[&lengths, bytes].concat());
    });
});
