//! One volume that is open.

use crate::archive::object::{ArchiveFile, file_len, read_exactly};
use fullbore_format::{
    error::{Error, Result},
    segment::Label,
    segment_reader::SegmentReader,
};
use fullbore_storage::Storages;
use std::path::{Path, PathBuf};

/// An open volume.
pub(super) struct VolumeFile {
    path: PathBuf,
    pub(super) file: ArchiveFile,
    pub(super) bytes: u64,
}

impl VolumeFile {
    pub(super) fn open(storages: &Storages, path: &Path) -> Result<Self> {
        let file = ArchiveFile::open(storages, path)?;
        let bytes = file_len(&file, path)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            bytes,
        })
    }

    pub(super) fn read_at(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        read_exactly(&self.file, &self.path, offset, len, out)
    }

    pub(super) fn reader(
        &self,
    ) -> SegmentReader<impl Fn(u64, usize, &mut Vec<u8>) -> Result<()> + '_> {
        SegmentReader::new(self.bytes, |offset, len, out: &mut Vec<u8>| {
            self.read_at(offset, len, out)
        })
    }

    /// Returns the label behind the empty first frame.
    pub(super) fn label(&self) -> Result<Label> {
        self.reader().label()?.ok_or_else(|| {
            Error::corrupt(format!("{:?} is no volume of fullbore", self.path))
                .because("it does not begin with a label")
        })
    }

    /// Checks that it is volume `number` of backup `set`.
    pub(super) fn check(&self, set: &str, number: u32) -> Result<()> {
        let label = self.label()?;
        if label.backup == set && (label.stream, label.number) == (1, number) {
            return Ok(());
        }
        Err(
            Error::corrupt(format!("{:?} is another volume", self.path)).because(format!(
                "it is volume {} of backup {:?}, not volume {number} of {set:?}",
                label.number, label.backup
            )),
        )
    }
}
