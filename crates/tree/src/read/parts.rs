//! Parts of frames and their padding.

use fullbore_format::{digest::Piece, pax};
use fullbore_pipeline::frame::{FrameContent, FrameEntry};

/// Appends the zeros that follow `len` bytes of content.
pub fn pad(buf: &mut Vec<u8>, len: u64) {
    buf.resize(buf.len() + pax::padding(len), 0);
}

/// Returns the part of a frame that holds `content`: its content is `len` bytes from `inner` on.
pub fn part(content: FrameContent, inner: usize, len: usize) -> FrameEntry {
    let inner = inner as u32;
    let len = len as u32;
    FrameEntry {
        what: content,
        inner,
        len,
        known: None,
        runs: None,
        piece: Piece::None,
        crcs: Vec::new(),
        chunks: Vec::new(),
        is_first: true,
        replaced: false,
    }
}
