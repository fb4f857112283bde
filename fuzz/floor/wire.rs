//! What the other side of a connection says, read as the program reads it.

#[allow(dead_code)]
#[path = "../../src/storage/wire/frame.rs"]
mod frame;
#[allow(dead_code)]
#[path = "../../src/storage/wire/message.rs"]
mod message;

use frame::{FrameLengths, MAX_DATA, MAX_HEADER, read_greeting};
use message::{Message, decode, decode_listed, encode, encode_listed};

/// Reads frames until one is wrong. A message that was read is written and read back as the same.
pub fn read_frames(mut bytes: &[u8]) {
    while let Ok(Some(lengths)) = FrameLengths::read(&mut bytes)
        && let Ok(frame) = lengths.read_frame(&mut bytes)
    {
        let (message, data) = (frame.message, frame.data);
        let encoded = encode(&message);
        assert!(encoded.len() <= MAX_HEADER && data.len() <= MAX_DATA);
        assert_eq!(decode::<Message>(&encoded).unwrap(), message);
    }
}

/// Reads a greeting.
pub fn greet(mut bytes: &[u8]) {
    let _ = read_greeting(&mut bytes, "\"far\"");
}

/// Reads a listing, and writes and reads it again.
pub fn list(bytes: &[u8]) {
    if let Ok(listed) = decode_listed(bytes) {
        assert_eq!(decode_listed(&encode_listed(&listed)).unwrap(), listed);
    }
}
