//! The frames of a segment, from its seek table, or from the lengths in the frames if the table is
//! lost.

use fullbore_format::{
    error::{Error, Result},
    page::SegmentId,
    segment::{FrameSpan, skippable_len},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_repository::archive::object::{ObjectName, ObjectReader, segment_reader};

/// Bytes that are read at first to find the end of a frame.
const FIRST_BYTES: usize = 4 << 20;

/// Longest frame: its content has 64 MiB at most.
const MOST_BYTES: u64 = 128 << 20;
/// The first bytes of a frame of zstd.
const ZSTD_MAGIC: [u8; 4] = 0xFD2F_B528u32.to_le_bytes();

/// The places of the frames of a segment.
#[derive(Debug, Default)]
pub(crate) struct FrameIndex {
    /// Frames with data.
    pub(crate) data: Vec<FrameSpan>,
    /// The other frames: number of frames before it, its offset, its stored bytes.
    pub(crate) service: Vec<(usize, u64, u32)>,
    /// Whether this comes from a seek table.
    pub(crate) has_table: bool,
}

impl FrameIndex {
    /// Reads the index of segment `id`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if the seek table is lost and the frames
    /// cannot be found without it.
    pub(crate) fn read(store: &dyn ObjectReader, codec: Codec, id: &SegmentId) -> Result<Self> {
        let object = ObjectName::Segment(id.clone());
        let bytes = store.len(&object)?;
        // A table that cannot be read is lost, whatever the reason.
        let table = segment_reader(store, &object, bytes).frames();
        let table = table.ok().flatten();
        let has_table = table.is_some();
        let frames = match table {
            Some(frames) => frames,
            None => walk(store, codec, &object, bytes)?,
        };
        let mut index = Self {
            has_table,
            ..Self::default()
        };
        for (position, (offset, stored, plain)) in frames.into_iter().enumerate() {
            if plain > 0 {
                index.data.push((offset, stored, plain));
            } else {
                index.service.push((position, offset, stored));
            }
        }
        Ok(index)
    }
}

/// Returns the frames in order, up to the end or to bytes that are not a frame.
fn walk(
    store: &dyn ObjectReader,
    codec: Codec,
    object: &ObjectName,
    len: u64,
) -> Result<Vec<FrameSpan>> {
    let mut frames = Vec::new();
    let mut offset = 0;
    while offset < len {
        // The size of a frame leads to the next one: without it, those behind cannot be found.
        let Some((stored, plain)) = frame(store, codec, object, offset, len)? else {
            break;
        };
        let (Ok(stored), Ok(plain)) = (u32::try_from(stored), u32::try_from(plain)) else {
            break;
        };
        if stored == 0 || offset + u64::from(stored) > len {
            break;
        }
        frames.push((offset, stored, plain));
        offset += u64::from(stored);
    }
    if frames.is_empty() {
        let name = store.name(object);
        return Err(Error::corrupt(format!("no frame of {name} can be found")));
    }
    Ok(frames)
}

/// Returns stored and plain bytes of the frame at `at`.
fn frame(
    store: &dyn ObjectReader,
    codec: Codec,
    object: &ObjectName,
    at: u64,
    len: u64,
) -> Result<Option<(u64, u64)>> {
    let segment = segment_reader(store, object, len);
    let header = segment.header(at)?;
    if let Some(stored) = skippable_len(&header) {
        return Ok(Some((stored, 0)));
    }
    match codec {
        Codec::Lz4 => segment.lz4_frame(at),
        _ if header.starts_with(&ZSTD_MAGIC) => zstd(store, object, at, len),
        _ => Ok(None),
    }
}

fn zstd(
    store: &dyn ObjectReader,
    object: &ObjectName,
    at: u64,
    len: u64,
) -> Result<Option<(u64, u64)>> {
    let (mut bytes, mut want) = (Vec::new(), FIRST_BYTES as u64);
    loop {
        let have = want.min(len - at);
        store.read_at(object, at, have as usize, &mut bytes)?;
        if let Ok(stored) = zstd_safe::find_frame_compressed_size(&bytes) {
            let plain = zstd_safe::get_frame_content_size(&bytes).ok().flatten();
            return Ok(plain.map(|plain| (stored as u64, plain)));
        }
        if have == len - at || want >= MOST_BYTES {
            return Ok(None);
        }
        want = (want * 8).min(MOST_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    /// A segment of 10 GiB with these first bytes, then zeros; and the most bytes that were read at
    /// once.
    struct Endless([u8; 4], AtomicUsize);

    impl ObjectReader for Endless {
        fn read_at(
            &self,
            _: &ObjectName,
            offset: u64,
            len: usize,
            out: &mut Vec<u8>,
        ) -> Result<()> {
            self.1.fetch_max(len, Relaxed);
            out.clear();
            out.resize(len, 0);
            out.iter_mut()
                .zip(self.0)
                .filter(|_| offset == 0)
                .for_each(|(end, byte)| *end = byte);
            Ok(())
        }

        fn len(&self, _: &ObjectName) -> Result<u64> {
            Ok(10 << 30)
        }

        fn name(&self, _: &ObjectName) -> String {
            "endless".to_owned()
        }
    }

    #[test]
    fn a_frame_without_an_end_is_not_read_for_ever() {
        let object = ObjectName::Segment(SegmentId {
            backup: String::new(),
            stream: 1,
            number: 1,
        });
        for (begins, most) in [([0; 4], 16), (ZSTD_MAGIC, MOST_BYTES as usize)] {
            let store = Endless(begins, AtomicUsize::new(0));
            assert!(walk(&store, Codec::Zstd(1), &object, 10 << 30).is_err());
            assert!(
                store.1.load(Relaxed) <= most,
                "{begins:?}: {}",
                store.1.load(Relaxed)
            );
        }
    }
}
