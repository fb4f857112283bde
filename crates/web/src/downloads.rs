//! Content of a backup, as it is sent: a file, or a directory as tar.zst or zip.
//!
//! All of it is checked against the backup before it is sent. An error ends the download without its end, so that the browser says that
//! it failed.

use crate::{ask::Running, place::Place};
use fullbore_format::error::{Error, ErrorKind, Result, quoted};
use fullbore_repository::archive::{Archive, stored_file::StoredFile};
use std::{
    ffi::OsString,
    io::{self, Read, Write},
    os::unix::ffi::OsStringExt,
    sync::Arc,
};
use zstd_safe::{CCtx, InBuffer, OutBuffer, zstd_sys::ZSTD_EndDirective};

/// Opens a file of a backup.
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is no file of this path; as [`StoredFile::new`].
pub(crate) fn open_file(place: &Place, archive: Arc<Archive>, path: &[u8]) -> Result<StoredFile> {
    let file = StoredFile::open(archive, place.frames.clone(), path)?;
    file.ok_or_else(|| {
        let message = format!("could not find a file {}", quoted(path));
        Error::new(ErrorKind::NotFound, message)
    })
}

pub(crate) fn gone(error: io::Error) -> Error {
    Error::io("could not send", error)
}

/// Writes a directory as tar.zst. `fullbore cat` makes the tar.
///
/// # Errors
/// Those of the command and of `out`.
pub(crate) fn write_tar_zst(words: &[OsString], out: &mut dyn Write) -> Result<()> {
    let mut running = Running::start(words)?;
    let mut packed = ZstdWriter::new(out)?;
    let mut buf = vec![0; 256 << 10];
    loop {
        let count = running.out.read(&mut buf);
        let count = count.map_err(|error| Error::io("could not read a tar", error))?;
        if count == 0 {
            break;
        }
        packed.write(&buf[..count])?;
    }
    // A frame without its end is no whole tar.zst.
    running.finish(&[0])?;
    packed.finish()
}

/// The words of `fullbore cat` for a directory.
pub(crate) fn cat_words(place: &Place, id: &str, dir: &[u8]) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["cat".into()];
    words.extend(place.shown.options.iter().cloned());
    words.push("--".into());
    words.push(place.backup_word(id));
    words.push(match dir {
        b"" => ".".into(),
        dir => OsString::from_vec([b"./", dir].concat()),
    });
    words
}

/// Compresses with zstd.
struct ZstdWriter<'a> {
    out: &'a mut dyn Write,
    context: CCtx<'static>,
    buf: Vec<u8>,
}

impl<'a> ZstdWriter<'a> {
    fn new(out: &'a mut dyn Write) -> Result<Self> {
        let no_memory = || Error::new(ErrorKind::System, "could not get memory for zstd");
        Ok(Self {
            out,
            context: CCtx::try_create().ok_or_else(no_memory)?,
            buf: Vec::with_capacity(CCtx::out_size()),
        })
    }

    fn write(&mut self, data: &[u8]) -> Result<()> {
        let mut input = InBuffer::around(data);
        while input.pos() < data.len() {
            self.step(&mut input, ZSTD_EndDirective::ZSTD_e_continue)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        let mut input = InBuffer::around(&[]);
        while self.step(&mut input, ZSTD_EndDirective::ZSTD_e_end)? > 0 {}
        Ok(())
    }

    fn step(&mut self, input: &mut InBuffer<'_>, end: ZSTD_EndDirective) -> Result<usize> {
        self.buf.clear();
        let mut output = OutBuffer::around(&mut self.buf);
        let left = self.context.compress_stream2(&mut output, input, end);
        let left = left.map_err(|_| Error::new(ErrorKind::Bug, "cannot compress"))?;
        self.out.write_all(&self.buf).map_err(gone)?;
        Ok(left)
    }
}
