//! The plan of an instant restore: which files are placeholders, and where their units begin.
//!
//! One line of JSON for the whole, and one for each file, in the order of the backup.

use super::state_dir::StateDir;
use fullbore_format::{
    error::{Error, Result},
    root::EntryName,
};
use fullbore_platform::pre_content::handle::FileHandle;
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
};

/// Bytes of a unit of a file: it is filled as a whole, and has one bit.
pub(super) const UNIT_BYTES: u64 = 256 << 10;

/// Facts about the whole restore.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PlanHead {
    /// `REPO@ID`, as `--resume` and the worker open it.
    pub(super) source: EntryName,
    /// Id of the backup.
    pub(super) backup: String,
    /// Major version of the cluster; `None` for a tree.
    pub(super) cluster: Option<u32>,
    /// Time of the top directory in the backup: seconds and nanoseconds.
    pub(super) top_mtime: (i64, u32),
    /// Directories, each on a file system of its own, with which files are opened by their handles.
    pub(super) roots: Vec<EntryName>,
    /// Files that read right only while somebody serves.
    pub(super) withheld: Vec<WithheldFile>,
    /// Number of placeholders.
    pub(super) files: u32,
    /// Bytes that were written before the tree was served.
    pub(super) early_bytes: u64,
}

/// A file that reads right only while somebody serves, such as `PG_VERSION`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WithheldFile {
    /// Path in the tree.
    pub(super) path: EntryName,
    pub(super) content: EntryName,
    pub(super) mtime: (i64, u32),
}

/// A placeholder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct PlannedFile {
    /// Path in the backup.
    pub(super) path: EntryName,
    pub(super) dev: u64,
    pub(super) inode: u64,
    /// Type and bytes of its handle.
    pub(super) handle: (i32, Vec<u8>),
    pub(super) size: u64,
    pub(super) mtime: (i64, u32),
    /// Number of its first unit.
    pub(super) first_unit: u64,
}

impl PlannedFile {
    /// Returns the number of its units.
    pub(super) fn units(&self) -> u64 {
        self.size.div_ceil(UNIT_BYTES)
    }

    pub(super) fn handle(&self) -> FileHandle {
        FileHandle {
            kind: self.handle.0,
            bytes: self.handle.1.clone(),
        }
    }
}

/// The plan.
#[derive(Debug)]
pub(super) struct InstantPlan {
    pub(super) head: PlanHead,
    pub(super) files: Vec<PlannedFile>,
}

impl InstantPlan {
    /// Writes the plan. It is durable with the first sync of the tree, before which no write to it is allowed.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn write(&self, state: &StateDir) -> Result<()> {
        let written = File::create(state.plan()).and_then(|file| self.write_to(file));
        written.map_err(|e| state.error("write the plan in", e))
    }

    fn write_to(&self, file: File) -> io::Result<()> {
        let mut out = BufWriter::new(file);
        serde_json::to_writer(&mut out, &self.head)?;
        for file in &self.files {
            out.write_all(b"\n")?;
            serde_json::to_writer(&mut out, file)?;
        }
        out.write_all(b"\n")?;
        out.into_inner()?.sync_data()
    }

    /// Reads the plan.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) if it is not whole, or the system's.
    pub(super) fn read(state: &StateDir) -> Result<Self> {
        let file = File::open(state.plan()).map_err(|e| state.error("read the plan in", e))?;
        let mut lines = BufReader::new(file).lines();
        let damaged = || Error::corrupt(format!("the plan in {:?} is damaged", state.path));
        let mut next = || lines.next().and_then(|line| line.ok()).ok_or_else(damaged);
        let head: PlanHead = serde_json::from_str(&next()?).map_err(|_| damaged())?;
        let mut files = Vec::new();
        let mut unit = 0;
        for _ in 0..head.files {
            let file: PlannedFile = serde_json::from_str(&next()?).map_err(|_| damaged())?;
            if file.first_unit != unit {
                return Err(damaged());
            }
            unit += file.units();
            files.push(file);
        }
        Ok(Self { head, files })
    }

    /// Returns the number of all units.
    pub(super) fn units(&self) -> u64 {
        self.files.iter().map(PlannedFile::units).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}
