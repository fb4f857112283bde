//! What the other side of a connection says, read as the program reads it.

use fullbore_wire::{
    certificate,
    frame::{FrameLengths, MAX_DATA, MAX_HEADER, read_greeting},
    listing::{ListingReader, pages},
    message::{MAX_VALUES, Message, decode, encode},
    object_call::{ObjectAnswer, ObjectCall},
};

/// Reads frames until one is wrong. A message that was read is written and read back as the same.
pub fn read_frames(mut bytes: &[u8]) {
    while let Ok(Some(lengths)) = FrameLengths::read(&mut bytes)
        && let Ok(frame) = lengths.read_frame(&mut bytes)
    {
        let (message, data) = (frame.message, frame.data);
        let encoded = encode(&message);
        assert!(encoded.len() <= MAX_HEADER && data.len() <= MAX_DATA);
        assert_eq!(decode::<Message>(&encoded, MAX_VALUES).unwrap(), message);
    }
}

/// Reads the words of the service of objects.
pub fn read_object_words(bytes: &[u8]) {
    if let Ok(call) = decode::<ObjectCall>(bytes, MAX_VALUES) {
        assert_eq!(decode::<ObjectCall>(&encode(&call), MAX_VALUES).unwrap(), call);
    }
    let _ = decode::<ObjectAnswer>(bytes, MAX_VALUES);
}

/// Reads a greeting.
pub fn greet(mut bytes: &[u8]) {
    let _ = read_greeting(&mut bytes, "\"far\"");
}

/// Reads a listing, and writes and reads it again.
pub fn list(bytes: &[u8]) {
    let mut reader = ListingReader::new("");
    if reader.take(bytes).is_ok() {
        let mut again = ListingReader::new("");
        let all = pages(&reader.listed);
        all.for_each(|page| again.take(&page).unwrap());
        assert_eq!(again.listed, reader.listed);
    }
}

/// Reads the name in a certificate.
pub fn name_certificate(bytes: &[u8]) {
    let _ = certificate::certificate_name(bytes);
}

/// Reads values of at most so many elements, as the answers of a copy and of a source are read.
pub fn decode_values(bytes: &[u8]) {
    let most = bytes.len() / 4;
    let _ = fullbore_format::cbor::decode_bounded::<Vec<(String, Option<Vec<u64>>)>>(bytes, most);
}
