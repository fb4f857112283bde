//! An archive that the server compresses, message by message.

use super::archives::wrong;
use fullbore_format::error::{Error, ErrorKind, Result, reason};
use lzzzz::lz4f::WriteDecompressor;
use std::io::Write;

/// Decompresses the messages of one archive. Memory: one message, and what the codec returns at once (64 KiB).
pub(super) struct Lz4Decoder {
    codec: WriteDecompressor<'static, Vec<u8>>,
    /// The present message, and the bytes of it that were decompressed.
    message: Vec<u8>,
    at: usize,
}

impl Lz4Decoder {
    pub(super) fn new() -> Result<Self> {
        let codec = WriteDecompressor::new(Vec::new());
        let codec = codec.map_err(|error| {
            let message = "could not begin to decompress";
            Error::new(ErrorKind::System, message).because(error.to_string())
        })?;
        Ok(Self {
            codec,
            message: Vec::new(),
            at: 0,
        })
    }

    pub(super) fn add(&mut self, message: Vec<u8>) {
        (self.message, self.at) = (message, 0);
    }

    /// Replaces `content` with the next bytes. Returns false if the next message is needed for them.
    ///
    /// # Errors
    /// For bytes that are not compressed as they must.
    pub(super) fn decode(&mut self, content: &mut Vec<u8>) -> Result<bool> {
        content.clear();
        std::mem::swap(self.codec.get_mut(), content);
        loop {
            let left = &self.message[self.at..];
            let is_message_empty = left.is_empty();
            if is_message_empty && self.codec.frame_info().is_none() {
                return Ok(false); // the header of the archive is not complete
            }
            let taken = self.codec.write(left).map_err(|error| {
                wrong("an archive in it cannot be decompressed").detail(reason(&error))
            })?;
            self.at += taken;
            if !self.codec.get_ref().is_empty() {
                std::mem::swap(self.codec.get_mut(), content);
                return Ok(true);
            }
            if is_message_empty {
                return Ok(false);
            }
            if taken == 0 {
                return Err(wrong("it has bytes behind a compressed archive"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lzzzz::lz4f::{self, PreferencesBuilder};

    fn compressed(content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        lz4f::compress_to_vec(content, &mut bytes, &PreferencesBuilder::new().build()).unwrap();
        bytes
    }

    /// Decompresses messages of this size.
    fn decoded(bytes: &[u8], message_bytes: usize) -> Result<Vec<u8>> {
        let mut decoder = Lz4Decoder::new()?;
        let mut all = Vec::new();
        let mut content = Vec::new();
        for message in bytes.chunks(message_bytes) {
            decoder.add(message.to_vec());
            while decoder.decode(&mut content)? {
                assert!(content.len() <= 64 << 10, "{}", content.len());
                all.extend_from_slice(&content);
            }
        }
        Ok(all)
    }

    #[test]
    fn messages_of_any_size_give_the_content() {
        let content: Vec<u8> = (0..300_000_u32)
            .flat_map(|at| (at / 7).to_le_bytes())
            .collect();
        for message_bytes in [1000, 8192, usize::MAX] {
            let bytes = decoded(&compressed(&content), message_bytes).unwrap();
            assert!(bytes == content, "{message_bytes}");
        }
        assert_eq!(decoded(&compressed(b""), 3).unwrap(), b"");
    }

    #[test]
    fn what_is_not_compressed_is_refused() {
        decoded(b"not compressed at all", 8192).unwrap_err();
        let mut bytes = compressed(&[7; 10_000]);
        bytes.extend([1; 100]);
        decoded(&bytes, 8192).unwrap_err();
    }

    #[test]
    fn a_short_message_with_much_content_takes_little_memory() {
        let bomb = compressed(&vec![0; 64 << 20]);
        assert!(bomb.len() < 1 << 20);
        assert_eq!(decoded(&bomb, usize::MAX).unwrap().len(), 64 << 20);
    }
}
