//! Writes the differing pieces of a batch: fetches each frame once, and writes the pieces from it.

use super::{DeltaBatch, DeltaWorker, PatchTarget, WantedPiece, frame_of};
use crate::report::damage::frame_damage;
use fullbore_format::{
    error::{Error, Result},
    page::{FrameAt, SegmentId},
};
use fullbore_platform::metrics::{cpu::ThreadClock, meter::lap};
use fullbore_repository::archive::{
    block_digests::judged,
    frame_reader::StoredFrame,
    schedule::{ContentEnd, check_whole, is_saved},
};
use fullbore_tree::write::writer::TargetWriter;
use std::sync::atomic::Ordering::Relaxed;

impl DeltaBatch<'_> {
    /// Decodes one frame and writes all wanted pieces of it.
    pub(super) fn write_frame(
        &self,
        worker: &mut DeltaWorker,
        wants: Vec<WantedPiece>,
    ) -> Result<()> {
        let Some(first) = wants.first() else {
            return Ok(());
        };
        let (segment, frame) = frame_of(first);
        let mut clock = ThreadClock::now();
        let DeltaWorker { writer, frames, .. } = worker;
        let fetched = frames.fetch(&self.run.archive, &segment, &frame);
        self.run
            .meter
            .stored_bytes
            .fetch_add(u64::from(frame.stored_len), Relaxed);
        lap(&self.run.meter.source, &mut clock);
        let decoded = fetched.and_then(StoredFrame::salvage);
        let plain = frames.plain();
        let wants = match decoded {
            Ok(None) => wants,
            // A damaged frame may hold whole blocks: what a digest proves is written.
            Ok(Some(error)) => {
                let (saved, lost) = wants
                    .into_iter()
                    .partition(|want| self.is_saved(want, plain));
                self.report_lost(writer, &(segment, frame), lost, error)?;
                saved
            }
            Err(error) => return self.report_lost(writer, &(segment, frame), wants, error),
        };
        lap(&self.run.meter.workers, &mut clock);
        let written = wants
            .iter()
            .try_for_each(|want| self.write_piece(writer, want, plain));
        lap(&self.run.meter.sink, &mut clock);
        written
    }

    /// Returns what the digests of blocks say of a piece: whether each is the same as in the
    /// manifest, or `None` for one without a digest. Only a piece that begins and ends at blocks
    /// can be judged.
    fn block_verdicts(&self, want: &WantedPiece, content: &[u8]) -> Option<Vec<Option<bool>>> {
        // Digests of parts of blocks are not defined.
        if !want.provable {
            return None;
        }
        let len = content.len();
        let blocks = judged(&want.item, self.block_bytes(), want.offset, content, len);
        Some(blocks.into_iter().map(|(_, same)| same).collect())
    }

    /// Returns whether digests prove a piece of a frame with a wrong checksum.
    fn is_saved(&self, want: &WantedPiece, plain: &[u8]) -> bool {
        let content = want.content(plain);
        if want.target.is_none() {
            return is_saved(&want.item, content);
        }
        let verdicts = self.block_verdicts(want, content);
        verdicts.is_some_and(|all| all.iter().all(|same| *same == Some(true)))
    }

    /// Reports a damaged frame and the files that need it.
    fn report_lost(
        &self,
        writer: &mut TargetWriter,
        at: &(SegmentId, FrameAt),
        wants: Vec<WantedPiece>,
        error: Error,
    ) -> Result<()> {
        if wants.is_empty() {
            self.run.report.harmless(&self.run.archive, at, error);
            return Ok(());
        }
        let files = wants
            .iter()
            .map(|want| want.item.entry.path.clone())
            .collect();
        self.run
            .report
            .add(frame_damage(&self.run.archive, at, error, files))?;
        wants
            .iter()
            .try_for_each(|want| self.mark_lost(writer, want))
    }

    fn write_piece(
        &self,
        writer: &mut TargetWriter,
        want: &WantedPiece,
        plain: &[u8],
    ) -> Result<()> {
        let content = want.content(plain);
        match &want.target {
            None => self.replace_file(writer, want, content),
            Some(_) if self.run.refused.contains(&want.item.entry.path) => Ok(()),
            Some(target) if self.is_refuted(want, content) => {
                if target.damaged.swap(true, Relaxed) {
                    return Ok(());
                }
                self.run.report.file(
                    &want.item,
                    "a block does not match its digest in the manifest",
                )
            }
            Some(target) => self.write_blocks(writer, want, target, content),
        }
    }

    /// Writes a file of a single piece anew.
    fn replace_file(
        &self,
        writer: &mut TargetWriter,
        want: &WantedPiece,
        content: &[u8],
    ) -> Result<()> {
        let entry = &want.item.entry;
        if let ContentEnd::Damaged(why) = check_whole(&want.item, content) {
            self.run.report.file(&want.item, &why)?;
            return self.mark_lost(writer, want);
        }
        self.delta.written.fetch_add(content.len() as u64, Relaxed);
        let made = writer.file(entry, content);
        if self.run.unless_refused(&entry.path, made)?.is_some() {
            self.count_file(true)?;
        }
        Ok(())
    }

    /// Returns whether a block digest contradicts the content of a piece.
    fn is_refuted(&self, want: &WantedPiece, content: &[u8]) -> bool {
        let verdicts = self.block_verdicts(want, content);
        verdicts.is_some_and(|all| all.contains(&Some(false)))
    }

    /// Writes the differing blocks of a piece in place.
    fn write_blocks(
        &self,
        writer: &mut TargetWriter,
        want: &WantedPiece,
        target: &PatchTarget,
        content: &[u8],
    ) -> Result<()> {
        let entry = &want.item.entry;
        for block in &want.blocks {
            let Some(bytes) = content.get(block.clone()) else {
                continue;
            };
            self.delta.written.fetch_add(bytes.len() as u64, Relaxed);
            let offset = want.offset + block.start as u64;
            let written = target.patch.write(writer, entry, offset, bytes);
            if self.run.unless_refused(&entry.path, written)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Marks the file of a lost piece as damaged.
    fn mark_lost(&self, writer: &mut TargetWriter, want: &WantedPiece) -> Result<()> {
        let path = &want.item.entry.path;
        match &want.target {
            Some(target) => target.damaged.store(true, Relaxed),
            None if writer.tree.is_there(path)? => self.give_up(path, false)?,
            None => {}
        }
        Ok(())
    }
}
