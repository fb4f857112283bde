//! A cartridge in a file: its parameters, then records and marks one after the other.
//!
//! The file begins with 4096 bytes of JSON (parameters and counters, filled up with spaces). A record is
//! `R`, three zeros, its length in 4 bytes (little endian) and its bytes; a mark is `M` and seven zeros.

use super::{motor::MotorCounters, settings::SimSettings};
use serde::{Deserialize, Serialize};
use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
};

const HEAD: u64 = 4096;
const FRAME: u64 = 8;

/// What a file says of its drive.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct CartridgeHead {
    pub(super) settings: SimSettings,
    #[serde(default)]
    pub(super) counters: MotorCounters,
    /// Where the head was left.
    #[serde(default)]
    pub(super) place: u64,
}

/// A record or a mark of a cartridge.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    offset: u64,
    /// `None` for a mark.
    pub(super) len: Option<u32>,
}

/// The medium.
#[derive(Debug)]
pub(super) struct Cartridge {
    file: File,
    writable: bool,
    lengths_only: bool,
    blocks: Vec<Block>,
    used_bytes: u64,
    pub(super) head: CartridgeHead,
}

impl Cartridge {
    /// Opens the file, or makes it with the default parameters.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).open(path);
        match opened {
            Ok(file) => Self::of(file, true),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Self::create(path, SimSettings::default())
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                Self::of(File::open(path)?, false)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes a blank cartridge; a file of this name must not exist.
    pub(super) fn create(path: &Path, settings: SimSettings) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(path)?;
        let counters = MotorCounters::default();
        let mut cartridge = Self {
            file,
            writable: true,
            lengths_only: false,
            blocks: Vec::new(),
            used_bytes: 0,
            head: CartridgeHead {
                settings,
                counters,
                place: 0,
            },
        };
        cartridge.save_head()?;
        Ok(cartridge)
    }

    fn of(mut file: File, writable: bool) -> io::Result<Self> {
        let mut text = vec![0; HEAD as usize];
        file.read_exact(&mut text)?;
        let head = serde_json::from_slice(&text)?;
        let mut cartridge = Self {
            file,
            writable,
            lengths_only: false,
            blocks: Vec::new(),
            used_bytes: 0,
            head,
        };
        cartridge.find_blocks()?;
        Ok(cartridge)
    }

    fn find_blocks(&mut self) -> io::Result<()> {
        let end = self.file.seek(SeekFrom::End(0))?;
        let mut offset = HEAD;
        while offset + FRAME <= end {
            let mut frame = [0; FRAME as usize];
            self.file.read_exact_at(&mut frame, offset)?;
            let len = u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]);
            let len = (frame[0] == b'R').then_some(len);
            self.blocks.push(Block { offset, len });
            let bytes = u64::from(len.unwrap_or(0));
            self.used_bytes += bytes;
            offset += FRAME + bytes;
        }
        Ok(())
    }

    /// Writes the parameters and counters.
    pub(super) fn save_head(&mut self) -> io::Result<()> {
        if !self.writable {
            return Ok(());
        }
        let mut text = serde_json::to_vec(&self.head)?;
        if text.len() > HEAD as usize {
            return Err(io::Error::new(
                ErrorKind::InvalidInput,
                "too many parameters",
            ));
        }
        text.resize(HEAD as usize, b' ');
        self.file.write_all_at(&text, 0)
    }

    pub(super) fn keep_lengths_only(&mut self) {
        self.lengths_only = true;
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable && !self.head.settings.write_protected
    }

    /// The number of records and marks.
    pub(super) fn len(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Bytes of all records.
    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    pub(super) fn block(&self, number: u64) -> Option<Block> {
        self.blocks.get(usize::try_from(number).ok()?).copied()
    }

    /// The share of the medium before a block, from 0 to 1.
    pub(super) fn share_before(&self, number: u64) -> f64 {
        let Some(block) = self.block(number) else {
            return self.used_bytes as f64 / self.head.settings.capacity_bytes.max(1) as f64;
        };
        (block.offset - HEAD) as f64 / self.head.settings.capacity_bytes.max(1) as f64
    }

    /// Removes the records and marks from this number on.
    pub(super) fn truncate(&mut self, number: u64) -> io::Result<()> {
        let Some(block) = self.block(number) else {
            return Ok(());
        };
        let gone = self.blocks.split_off(number as usize);
        let bytes = gone.iter().map(|block| u64::from(block.len.unwrap_or(0)));
        self.used_bytes -= bytes.sum::<u64>();
        self.file.set_len(block.offset)
    }

    /// Adds a record behind the last block.
    pub(super) fn add_record(&mut self, bytes: &[u8]) -> io::Result<()> {
        let len = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut frame = [b'R', 0, 0, 0, 0, 0, 0, 0];
        frame[4..].copy_from_slice(&len.to_le_bytes());
        let offset = self.end();
        self.file.write_all_at(&frame, offset)?;
        if self.lengths_only {
            self.file.set_len(offset + FRAME + bytes.len() as u64)?;
        } else {
            self.file.write_all_at(bytes, offset + FRAME)?;
        }
        let len = Some(len);
        self.blocks.push(Block { offset, len });
        self.used_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Adds a mark behind the last block.
    pub(super) fn add_mark(&mut self) -> io::Result<()> {
        let offset = self.end();
        self.file.write_all_at(b"M\0\0\0\0\0\0\0", offset)?;
        self.blocks.push(Block { offset, len: None });
        Ok(())
    }

    fn end(&self) -> u64 {
        self.blocks.last().map_or(HEAD, |block| {
            block.offset + FRAME + u64::from(block.len.unwrap_or(0))
        })
    }

    /// Reads the bytes of a record, as many as the buffer holds.
    pub(super) fn read(&self, block: Block, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, block.offset + FRAME)
    }
}
