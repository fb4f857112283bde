//! Writes the volumes of a backup, one after the other.

use super::{SetProgress, VolumeSize, VolumeSpec};
use crate::sink::local_file::{OneFile, Output};
use fullbore_crypt::{SealingWriter, UserRecipient, sealed_bytes};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_pipeline::sink::{Placed, Role, Sink, StoredSegment};
use fullbore_platform::{place::quoted_path, queue::Locked};
use fullbore_repository::volume_files::VolumeFiles;
use fullbore_storage::{ChangeAction, ChangeRequest, Changed};
use std::{
    io::Write,
    mem,
    sync::{Arc, Mutex},
};

/// Space is reserved in steps, so that the file system is asked rarely.
const RESERVED_STEP: u64 = 64 << 20;

/// The only stream of a backup in volumes.
pub(super) struct VolumeSink {
    spec: VolumeSpec,
    files: VolumeFiles,
    id: String,
    recipients: Option<Arc<[UserRecipient]>>,
    progress: Arc<Mutex<SetProgress>>,
    open: Option<OpenVolume>,
}

/// The volume that is written.
struct OpenVolume {
    number: u32,
    size: VolumeSize,
    output: Output,
    /// Seals the bytes, if the volume is encrypted.
    sealing: Option<SealingWriter<Vec<u8>>>,
    /// Bytes of the header of an encrypted volume.
    header_bytes: u64,
    /// Bytes before sealing.
    plain_bytes: u64,
    /// Bytes in the file.
    stored_bytes: u64,
    /// Bytes for which there is space.
    reserved_bytes: u64,
}

impl OpenVolume {
    fn put(&mut self, placed: &Placed) -> Result<()> {
        let is_next = placed.segment == self.number && placed.offset == self.plain_bytes;
        if placed.role != Role::Stream || !is_next {
            let message = "cannot write a volume out of order";
            return Err(Error::new(ErrorKind::Bug, message));
        }
        self.plain_bytes += placed.data.len() as u64;
        match &mut self.sealing {
            None => self.write(&placed.data),
            Some(sealing) => {
                sealing.write_all(&placed.data).map_err(not_sealed)?;
                let sealed = mem::take(sealing.get_mut());
                self.write(&sealed)
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.output.write(bytes, self.stored_bytes)?;
        self.stored_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Ends the file and makes it durable.
    fn close(mut self) -> Result<()> {
        if let Some(sealing) = self.sealing.take() {
            let rest = sealing.finish().map_err(not_sealed)?;
            self.write(&rest)?;
        }
        self.output.release_reserve()?;
        self.output.sync()
    }

    /// Returns whether the volume can have so many plain bytes.
    fn has_room(&mut self, plain_bytes: u64) -> Result<bool> {
        let bytes = match self.sealing {
            Some(_) => self.header_bytes.saturating_add(sealed_bytes(plain_bytes)),
            None => plain_bytes,
        };
        match self.size {
            VolumeSize::Bytes(most) => Ok(bytes <= most),
            VolumeSize::Auto => self.reserve(bytes),
        }
    }

    /// Takes space on the file system for so many bytes, so that they are written without an error.
    fn reserve(&mut self, bytes: u64) -> Result<bool> {
        if bytes <= self.reserved_bytes {
            return Ok(true);
        }
        for reserved in [bytes + RESERVED_STEP, bytes] {
            if self.output.reserve(reserved)? {
                self.reserved_bytes = reserved;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn not_sealed(error: std::io::Error) -> Error {
    Error::io("could not encrypt a volume", error)
}

impl VolumeSink {
    pub(super) fn new(
        spec: VolumeSpec,
        id: String,
        recipients: Option<Arc<[UserRecipient]>>,
        progress: Arc<Mutex<SetProgress>>,
    ) -> Self {
        let files = VolumeFiles::new(&spec.prefix, &id);
        Self {
            spec,
            files,
            id,
            recipients,
            progress,
            open: None,
        }
    }

    /// Returns the open volume `number`; begins it if it is the next one.
    fn volume(&mut self, number: u32) -> Result<&mut OpenVolume> {
        let open = match self.open.take() {
            Some(open) if open.number == number => open,
            _ => self.begin(number)?,
        };
        Ok(self.open.insert(open))
    }

    /// Begins a volume, after the one before it has its name. The medium is changed in between.
    fn begin(&mut self, number: u32) -> Result<OpenVolume> {
        self.progress.locked().name_newest(false)?;
        let is_sealed = self.recipients.is_some();
        if number > 1 {
            self.change_medium(number, is_sealed)?;
        }
        let path = self.files.path(number, is_sealed);
        if path.symlink_metadata().is_ok() {
            let message = format!(
                "cannot write volume {number}: {} exists",
                quoted_path(&path)
            );
            return Err(Error::new(ErrorKind::Exists, message)
                .hint("insert a medium without volumes of this name"));
        }
        let file = OneFile::create(&path, &self.id)?;
        let output = file.begin()?;
        self.progress.locked().unnamed = Some(file);
        let sealing = self
            .recipients
            .as_ref()
            .map(|to| SealingWriter::new(Vec::new(), to));
        let sealing = sealing.transpose()?;
        Ok(OpenVolume {
            number,
            size: self.spec.sizes.of(number),
            output,
            header_bytes: sealing.as_ref().map_or(0, SealingWriter::header_bytes),
            sealing,
            plain_bytes: 0,
            stored_bytes: 0,
            reserved_bytes: 0,
        })
    }

    /// Asks for the medium of the next volume. Volumes of a fixed size stay on one medium, unless a
    /// command changes it.
    fn change_medium(&self, number: u32, is_sealed: bool) -> Result<()> {
        let change = &self.spec.change;
        let is_full = self.spec.sizes.of(number - 1) == VolumeSize::Auto;
        if !change.is_automatic() && !is_full {
            return Ok(());
        }
        let request = ChangeRequest {
            action: ChangeAction::Next,
            drive: self.files.dir().display().to_string(),
            set: self.id.clone(),
            volume: number,
            label: self.files.label(number, is_sealed),
            reason: format!("volume {} of the backup is complete", number - 1),
        };
        match change.ask(&request)? {
            Changed::Yes => Ok(()),
            Changed::No => {
                let message = format!("could not continue on volume {number}");
                Err(Error::new(ErrorKind::Full, message).because("the medium was not changed"))
            }
        }
    }
}

impl Sink for VolumeSink {
    fn put(&mut self, placed: Placed) -> Result<()> {
        self.volume(placed.segment)?.put(&placed)
    }

    fn put_page(&mut self, page: &[u8]) -> Result<Option<u64>> {
        self.progress.locked().pages.add(page).map(Some)
    }

    fn has_room(&mut self, segment: u32, bytes: u64) -> Result<bool> {
        self.volume(segment)?.has_room(bytes)
    }

    fn earlier_page(&mut self, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        self.progress.locked().pages.read(offset, bytes)
    }

    fn end_segment(&mut self) -> Result<()> {
        self.open.take().map_or(Ok(()), OpenVolume::close)
    }

    fn finish(mut self: Box<Self>) -> Result<Vec<StoredSegment>> {
        self.end_segment()?;
        Ok(Vec::new())
    }
}
