//! PostgreSQL's own `backup_manifest`, byte for byte as the server writes it, for `pg_verifybackup` and `pg_combinebackup`.
//!
//! Version 1 up to PostgreSQL 16, version 2 from 17 on. Files stand in it in the order they are added; WAL and the manifest
//! itself do not. Lines go to a temporary file without a name, so millions of files cost no memory.

use crate::{
    error::{Error, Result},
    format::digest::hex,
    platform::write::anonymous_file,
};
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::{BufWriter, Write},
};

/// A manifest that is being written.
pub struct Manifest {
    file: BufWriter<File>,
    digest: Sha256,
    bytes: u64,
    /// What is between the line before and the next: a comma, except before the first.
    between: &'static str,
}

/// WAL that recovery needs of one timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalRange {
    /// The timeline.
    pub timeline: u32,
    /// Where it begins.
    pub start_lsn: u64,
    /// Where it ends; the next byte is not needed.
    pub end_lsn: u64,
}

/// A manifest that is complete.
#[derive(Debug)]
pub struct Finished {
    /// Its bytes, from 0; read them at offsets.
    pub file: File,
    /// How many.
    pub bytes: u64,
}

impl Manifest {
    /// Begin the manifest of a cluster of version `major`.
    ///
    /// # Errors
    /// The system's, of the temporary file.
    pub fn new(major: u32, system_identifier: u64) -> Result<Self> {
        let file = anonymous_file(&std::env::temp_dir()).map_err(failed)?;
        let mut manifest = Self {
            file: BufWriter::with_capacity(64 << 10, file),
            digest: Sha256::new(),
            bytes: 0,
            between: "\n",
        };
        let version = if major < 17 { 1 } else { 2 };
        manifest.put(&format!(
            "{{ \"PostgreSQL-Backup-Manifest-Version\": {version},\n"
        ))?;
        if version > 1 {
            manifest.put(&format!("\"System-Identifier\": {system_identifier},\n"))?;
        }
        manifest.put("\"Files\": [")?;
        Ok(manifest)
    }

    /// The file `path`, relative to the data directory, of `size` bytes; its checksum may not be known.
    ///
    /// # Errors
    /// The system's, of the temporary file.
    pub fn add(
        &mut self,
        path: &[u8],
        size: u64,
        mtime_seconds: i64,
        crc32c: Option<u32>,
    ) -> Result<()> {
        let (between, path, time) = (
            std::mem::replace(&mut self.between, ",\n"),
            path_member(path),
            gmt(mtime_seconds),
        );
        // The server prints the four bytes as they lie in its memory.
        let crc = crc32c.map(|crc| hex(&crc.to_le_bytes()));
        let crc =
            crc.map(|crc| format!(", \"Checksum-Algorithm\": \"CRC32C\", \"Checksum\": \"{crc}\""));
        let crc = crc.unwrap_or_default();
        self.put(&format!(
            "{between}{{ {path}, \"Size\": {size}, \"Last-Modified\": \"{time}\"{crc} }}"
        ))
    }

    /// All files were added; recovery needs `wal`, newest first.
    ///
    /// # Errors
    /// The system's, of the temporary file.
    pub fn finish(mut self, wal: &[WalRange]) -> Result<Finished> {
        let ranges: Vec<String> = wal.iter().map(WalRange::line).collect();
        self.put(&format!(
            "\n],\n\"WAL-Ranges\": [\n{}\n],\n",
            ranges.join(",\n")
        ))?;
        let digest = hex(&self.digest.finalize_reset());
        self.put(&format!("\"Manifest-Checksum\": \"{digest}\"}}\n"))?;
        let file = self.file.into_inner().map_err(|e| failed(e.into_error()))?;
        Ok(Finished {
            file,
            bytes: self.bytes,
        })
    }

    fn put(&mut self, text: &str) -> Result<()> {
        self.digest.update(text);
        self.bytes += text.len() as u64;
        self.file.write_all(text.as_bytes()).map_err(failed)
    }
}

impl WalRange {
    fn line(&self) -> String {
        let Self {
            timeline,
            start_lsn,
            end_lsn,
        } = *self;
        let (start, end) = (lsn(start_lsn), lsn(end_lsn));
        format!(
            "{{ \"Timeline\": {timeline}, \"Start-LSN\": \"{start}\", \"End-LSN\": \"{end}\" }}"
        )
    }
}

/// A place in the WAL as the server prints it: `0/2000028`.
pub fn lsn(place: u64) -> String {
    format!("{:X}/{:X}", place >> 32, place & 0xffff_ffff)
}

/// JSON has no bytes: a path that is no UTF-8 is written in hexadecimal.
fn path_member(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        // Escapes are those of the server: short ones where JSON has them, else \u00 and two digits.
        Ok(text) => format!("\"Path\": {}", serde_json::Value::from(text)),
        Err(_) => format!("\"Encoded-Path\": \"{}\"", hex(path)),
    }
}

/// Times beyond the year 9999 are written as the last that has four digits: nobody compares them.
fn gmt(seconds: i64) -> String {
    let last = if seconds < 0 {
        Timestamp::MIN
    } else {
        Timestamp::MAX
    };
    Timestamp::from_second(seconds)
        .unwrap_or(last)
        .strftime("%Y-%m-%d %H:%M:%S GMT")
        .to_string()
}

fn failed(error: std::io::Error) -> Error {
    Error::io(
        "could not keep the manifest for PostgreSQL in a temporary file",
        error,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn text(finished: &Finished) -> String {
        let mut bytes = vec![0; finished.bytes as usize];
        finished.file.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(finished.file.metadata().unwrap().len(), finished.bytes);
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn version_two_names_the_cluster_and_ranges_are_listed_as_given() {
        let mut manifest = Manifest::new(17, u64::MAX).unwrap();
        manifest
            .add(b"a\"\n\x01\\\x7f\xc3\xa4", 3, 0, Some(0x0102_0304))
            .unwrap();
        manifest
            .add(b"b\xff", u64::MAX, 1_700_000_000, Some(0))
            .unwrap();
        let range = |timeline, start_lsn, end_lsn| WalRange {
            timeline,
            start_lsn,
            end_lsn,
        };
        let text = text(
            &manifest
                .finish(&[
                    range(2, 0x1_0000_00aa, 0x1_0000_00ff),
                    range(1, 0x28, 0x1_0000_00aa),
                ])
                .unwrap(),
        );
        let (body, tail) = text.split_at(text.find("\"Manifest-Checksum\"").unwrap());
        assert_eq!(
            body,
            "{ \"PostgreSQL-Backup-Manifest-Version\": 2,\n\
             \"System-Identifier\": 18446744073709551615,\n\
             \"Files\": [\n\
             { \"Path\": \"a\\\"\\n\\u0001\\\\\u{7f}ä\", \"Size\": 3, \"Last-Modified\": \"1970-01-01 00:00:00 GMT\", \
             \"Checksum-Algorithm\": \"CRC32C\", \"Checksum\": \"04030201\" },\n\
             { \"Encoded-Path\": \"62ff\", \"Size\": 18446744073709551615, \"Last-Modified\": \"2023-11-14 22:13:20 GMT\", \
             \"Checksum-Algorithm\": \"CRC32C\", \"Checksum\": \"00000000\" }\n\
             ],\n\
             \"WAL-Ranges\": [\n\
             { \"Timeline\": 2, \"Start-LSN\": \"1/AA\", \"End-LSN\": \"1/FF\" },\n\
             { \"Timeline\": 1, \"Start-LSN\": \"0/28\", \"End-LSN\": \"1/AA\" }\n\
             ],\n"
        );
        assert_eq!(
            tail,
            format!(
                "\"Manifest-Checksum\": \"{}\"}}\n",
                hex(&Sha256::digest(body))
            )
        );
    }

    #[test]
    fn version_one_does_not_and_may_be_empty() {
        let text = text(&Manifest::new(16, 1).unwrap().finish(&[]).unwrap());
        assert!(
            text.starts_with(
                "{ \"PostgreSQL-Backup-Manifest-Version\": 1,\n\"Files\": [\n],\n\"WAL-Ranges\": [\n\n],\n"
            )
        );
    }

    #[test]
    fn no_time_is_too_far() {
        assert_eq!(gmt(-1), "1969-12-31 23:59:59 GMT");
        assert!(gmt(i64::MAX).starts_with("9999-12-30") && !gmt(i64::MIN).is_empty());
    }
}
