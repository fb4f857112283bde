//! What `fullbore tape probe` measures.

use fullbore_format::{
    error::Result,
    text::{self, size},
};
use fullbore_tape::{Drive, DriveResult, ReadOutcome, RecordOutcome};
use serde::Serialize;
use std::{io::Write, time::Instant};

/// The length of the records.
const RECORD_BYTES: usize = 1 << 20;
/// Records between two questions for the place.
const ASKED_EVERY: u64 = 64;

/// The figures of a drive.
#[derive(Debug, Default, Serialize)]
pub(super) struct ProbeFigures {
    r#type: &'static str,
    record_bytes: u64,
    most_record_bytes: u64,
    written_bytes: u64,
    bytes_per_second: u64,
    /// The longest single write.
    longest_write_seconds: f64,
    /// The most bytes that were only in the buffer of the drive, as it told; `None` if it does not tell.
    buffered_bytes: Option<u64>,
    mark_seconds: f64,
    flush_seconds: f64,
    rewind_seconds: f64,
    locate_seconds: Option<f64>,
    /// Bytes written behind the early warning, if it was met.
    room_bytes: Option<u64>,
}

/// Writes and reads a tape from its begin.
///
/// # Errors
/// Those of the drive.
pub(super) fn probe(drive: &mut dyn Drive, bytes: u64) -> DriveResult<ProbeFigures> {
    let limits = drive.limits();
    let record_bytes = RECORD_BYTES.min(limits.most_bytes as usize);
    let mut figures = ProbeFigures {
        r#type: "result",
        record_bytes: record_bytes as u64,
        most_record_bytes: limits.most_bytes.into(),
        ..ProbeFigures::default()
    };
    drive.rewind()?;
    let records = write(drive, bytes, &mut figures)?;
    figures.mark_seconds = timed(|| drive.mark().map(drop))?;
    figures.flush_seconds = timed(|| drive.flush())?;
    figures.rewind_seconds = timed(|| drive.rewind())?;
    let middle = records / 2;
    let located = timed(|| drive.locate(middle));
    let mut buffer = vec![0; record_bytes];
    let is_found = drive.read(&mut buffer)? == ReadOutcome::Record(record_bytes)
        && buffer[..8] == middle.to_le_bytes();
    figures.locate_seconds = located.ok().filter(|_| is_found);
    Ok(figures)
}

/// Writes records and counts; returns their number.
fn write(drive: &mut dyn Drive, bytes: u64, figures: &mut ProbeFigures) -> DriveResult<u64> {
    let mut record = noise(figures.record_bytes as usize);
    let mut records = 0u64;
    let start = Instant::now();
    while figures.written_bytes < bytes {
        record[..8].copy_from_slice(&records.to_le_bytes());
        let begin = Instant::now();
        let outcome = drive.record(&record)?;
        let took = begin.elapsed().as_secs_f64();
        figures.longest_write_seconds = figures.longest_write_seconds.max(took);
        match outcome {
            RecordOutcome::Full => break,
            RecordOutcome::Taken => {}
            RecordOutcome::TakenNearEnd => {
                *figures.room_bytes.get_or_insert_default() += figures.record_bytes;
            }
        }
        records += 1;
        figures.written_bytes += figures.record_bytes;
        if records.is_multiple_of(ASKED_EVERY) {
            note_buffer(drive, figures)?;
        }
    }
    figures.bytes_per_second =
        (figures.written_bytes as f64 / start.elapsed().as_secs_f64()) as u64;
    Ok(records)
}

fn note_buffer(drive: &mut dyn Drive, figures: &mut ProbeFigures) -> DriveResult<()> {
    let place = drive.position()?;
    if let Some(on_medium) = place.on_medium {
        let waiting = place.next.saturating_sub(on_medium) * figures.record_bytes;
        let most = figures.buffered_bytes.get_or_insert(0);
        *most = waiting.max(*most);
    }
    Ok(())
}

/// Bytes that a drive cannot compress.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn timed(call: impl FnOnce() -> DriveResult<()>) -> DriveResult<f64> {
    let begin = Instant::now();
    call()?;
    Ok(begin.elapsed().as_secs_f64())
}

/// Prints the figures.
///
/// # Errors
/// Those of `out`.
pub(super) fn print(figures: &ProbeFigures, is_json: bool, out: &mut dyn Write) -> Result<()> {
    if is_json {
        return text::json(out, figures);
    }
    let buffered = match figures.buffered_bytes {
        None => "the drive does not tell which records are only in its buffer".to_owned(),
        Some(0) => "the drive says of each record at once that it is on the medium: it may not be"
            .to_owned(),
        Some(bytes) => format!(
            "up to {} were only in the buffer of the drive",
            text::bytes(bytes)
        ),
    };
    let located = match figures.locate_seconds {
        Some(seconds) => size::seconds(seconds),
        None => "not found".to_owned(),
    };
    let mut lines = vec![
        format!(
            "records of {} (the drive takes up to {})",
            text::binary_bytes(figures.record_bytes),
            text::binary_bytes(figures.most_record_bytes)
        ),
        format!(
            "{} written, {:.1} MB/s, longest write {}",
            text::bytes(figures.written_bytes),
            figures.bytes_per_second as f64 / 1e6,
            size::seconds(figures.longest_write_seconds)
        ),
        buffered,
        format!(
            "a mark {}, until all is on the medium {}",
            size::seconds(figures.mark_seconds),
            size::seconds(figures.flush_seconds)
        ),
        format!(
            "rewind {}, to the middle record {located}",
            size::seconds(figures.rewind_seconds)
        ),
    ];
    let room = figures
        .room_bytes
        .map(|bytes| format!("{} written behind the early warning", text::bytes(bytes)));
    lines.extend(room);
    lines.iter().try_for_each(|line| text::line(out, line))
}
