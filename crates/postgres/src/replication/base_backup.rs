//! A base backup as the server sends it: archives in the format of tar, and where it began and ended.
//!
//! Both framings are understood: one COPY for each archive up to version 14, and messages with a kind
//! in one COPY from 15 on. Bytes are handed on as they come. What they say is checked by the caller;
//! memory is one message.

use super::{
    AnswerRow, ReplicationClient,
    message::{Fields, Message, Messages, lost, unexpected},
    place, read_answer,
    refusal::{refusal, state_of},
    text_at, timeline_number,
};
use crate::lsn::Lsn;
use fullbore_format::error::{Result, quoted};
use std::io;

/// The first version with options in brackets, and with messages that have a kind.
const BRACKETS_SINCE: u32 = 15;
/// Tablespaces of a cluster, at most.
const MAX_TABLESPACES: usize = 10_000;
/// Messages in a row that are not part of the backup, at most.
const MAX_OTHERS: usize = 100_000;
/// The SQLSTATE after a complete backup in which the server found wrong checksums.
const DATA_CORRUPTED: &str = "XX001";

/// Options of a base backup.
#[derive(Debug, Clone)]
pub struct BaseBackupOptions {
    /// The label, of letters, digits, spaces, `-` and `_`; other characters are left out.
    pub label: String,
    /// True for a checkpoint at once.
    pub fast: bool,
    /// Whether the last archive has the WAL that the backup needs.
    pub includes_wal: bool,
    /// Whether the server waits until the WAL is archived.
    pub awaits_archive: bool,
    /// Whether the server sends the blocks that changed since the backup whose manifest it got.
    pub is_incremental: bool,
    /// Whether the server compresses with lz4, if its version can.
    pub is_compressed: bool,
}

/// A tablespace, as the server names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentTablespace {
    pub oid: u32,
    pub location: Vec<u8>,
}

/// The next part of a base backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackupPart {
    /// An archive begins: that of a tablespace, by its index, or that of the data directory.
    Archive(Option<usize>),
    /// Bytes of the archive.
    Data(Vec<u8>),
    /// All archives have ended.
    End(BackupEnd),
}

/// Where a base backup ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupEnd {
    pub stop: Lsn,
    pub timeline: u32,
    /// Whether the server found pages with wrong checksums that stayed wrong.
    pub has_bad_pages: bool,
}

/// A base backup that is received.
pub struct BaseBackupStream {
    messages: Messages,
    major: u32,
    /// Where recovery begins.
    pub start: Lsn,
    /// The timeline of that place.
    pub start_timeline: u32,
    pub tablespaces: Vec<SentTablespace>,
    /// The archives whose COPY has not begun, in reverse order; `None` is the data directory. Used for
    /// the framing up to version 14.
    expected: Vec<Option<usize>>,
    is_copying: bool,
    is_compressed: bool,
}

impl BaseBackupOptions {
    fn command(&self, major: u32) -> String {
        let is_plain = |c: &char| c.is_ascii_alphanumeric() || " -_".contains(*c);
        let label: String = self.label.chars().filter(is_plain).collect();
        let mut words = vec![format!("LABEL '{label}'")];
        let mut add = |old: &str, new: String| {
            let word = if major < BRACKETS_SINCE {
                old.to_owned()
            } else {
                new
            };
            words.extend(Some(word).filter(|word| !word.is_empty()));
        };
        let checkpoint = if self.fast { "fast" } else { "spread" };
        add(
            if self.fast { "FAST" } else { "" },
            format!("CHECKPOINT '{checkpoint}'"),
        );
        add(
            if self.includes_wal { "WAL" } else { "" },
            format!("WAL {}", self.includes_wal),
        );
        add(
            if self.awaits_archive { "" } else { "NOWAIT" },
            format!("WAIT {}", self.awaits_archive),
        );
        add("TABLESPACE_MAP", "TABLESPACE_MAP true".to_owned());
        add("", "TARGET 'client'".to_owned());
        if self.is_compressed {
            add("", "COMPRESSION 'lz4'".to_owned());
        }
        if self.is_incremental {
            add("", "INCREMENTAL true".to_owned());
        }
        match major {
            ..BRACKETS_SINCE => format!("BASE_BACKUP {}", words.join(" ")),
            _ => format!("BASE_BACKUP ({})", words.join(", ")),
        }
    }
}

impl ReplicationClient {
    /// Sends the server the manifest of an earlier backup, of so many `messages`, which `next` returns by their
    /// numbers. The next base backup of this session may be an incremental one.
    ///
    /// # Errors
    /// The server's; those of `next`, after which the session is of no further use.
    pub fn upload_manifest(
        &mut self,
        messages: u64,
        next: &mut dyn FnMut(u64) -> Result<Vec<u8>>,
    ) -> Result<()> {
        self.send("UPLOAD_MANIFEST")?;
        let failed = "the server refused the manifest of the earlier backup";
        match self.copy_begins()? {
            Ok(()) => {}
            Err(body) => return Err(refusal(failed, &body)),
        }
        for number in 0..messages {
            self.messages.write(Some(b'd'), &next(number)?)?;
        }
        self.messages.write(Some(b'c'), b"")?;
        let answer = read_answer(&mut self.messages)?;
        answer.map(drop).map_err(|body| refusal(failed, &body))
    }

    /// Waits until the server wants the bytes of a copy. The inner error is the server's.
    fn copy_begins(&mut self) -> Result<Result<(), Vec<u8>>> {
        for _ in 0..MAX_OTHERS {
            let message = self.messages.next()?;
            match message.ok_or_else(|| lost(&io::ErrorKind::TimedOut.into()))? {
                Message { kind: b'G', .. } => return Ok(Ok(())),
                Message { kind: b'E', body } => return Ok(Err(body)),
                Message {
                    kind: b'N' | b'S', ..
                } => {}
                Message { kind, .. } => {
                    return Err(unexpected(&format!("a message of kind {kind}")));
                }
            }
        }
        Err(unexpected("too many notices"))
    }

    /// Begins a base backup. Returns when the server has done its checkpoint.
    ///
    /// # Errors
    /// The server's, as for a role without the right; those of the connection.
    pub fn base_backup(mut self, options: &BaseBackupOptions) -> Result<BaseBackupStream> {
        self.send(&options.command(self.major))?;
        let mut stream = BaseBackupStream {
            messages: self.messages,
            major: self.major,
            start: Lsn(0),
            start_timeline: 0,
            tablespaces: Vec::new(),
            expected: Vec::new(),
            is_copying: false,
            is_compressed: options.is_compressed && self.major >= BRACKETS_SINCE,
        };
        let (start, timeline) = stream.position()?;
        (stream.start, stream.start_timeline) = (start, timeline);
        for row in stream.rows(MAX_TABLESPACES)? {
            stream.add_tablespace(row)?;
        }
        stream.expected.reverse();
        Ok(stream)
    }
}

impl BaseBackupStream {
    /// Major version of the server.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Returns whether archives are compressed with lz4.
    pub fn is_compressed(&self) -> bool {
        self.is_compressed
    }

    /// Returns whether archives end with blocks of zeros.
    pub fn ends_archives(&self) -> bool {
        self.major >= BRACKETS_SINCE
    }

    /// Waits for the next part.
    ///
    /// # Errors
    /// The server's; [`ErrorKind::Unreachable`](fullbore_format::error::ErrorKind::Unreachable) if the
    /// connection is lost. After an error the session is of no further use.
    pub fn next_part(&mut self) -> Result<BackupPart> {
        for _ in 0..MAX_OTHERS {
            let Message { kind, body } = self.message()?;
            let part = match kind {
                b'H' if !self.is_copying => self.begin_copy()?,
                b'd' if self.is_copying => self.data(body)?,
                b'c' if self.is_copying => {
                    self.is_copying = false;
                    None
                }
                // The end of the copies is an answer with one row.
                b'T' if !self.is_copying => return self.end().map(BackupPart::End),
                b'C' if !self.is_copying => None,
                kind => return Err(unexpected(&format!("a message of kind {kind}"))),
            };
            if let Some(part) = part {
                return Ok(part);
            }
        }
        Err(unexpected("too many messages without data"))
    }

    fn begin_copy(&mut self) -> Result<Option<BackupPart>> {
        self.is_copying = true;
        if self.major >= BRACKETS_SINCE {
            return Ok(None);
        }
        let next = self.expected.pop();
        let next = next.ok_or_else(|| unexpected("more archives than tablespaces"))?;
        Ok(Some(BackupPart::Archive(next)))
    }

    fn data(&mut self, mut body: Vec<u8>) -> Result<Option<BackupPart>> {
        if self.major < BRACKETS_SINCE {
            return Ok(Some(BackupPart::Data(body)));
        }
        let mut fields = Fields(&body);
        match fields.byte()? {
            b'd' => {
                body.remove(0);
                Ok(Some(BackupPart::Data(body)))
            }
            b'n' => {
                let name = fields.text()?;
                self.named_archive(name).map(Some)
            }
            b'p' => Ok(None),
            kind => Err(unexpected(&format!("data of kind {kind}"))),
        }
    }

    /// An archive is named for its tablespace.
    fn named_archive(&mut self, name: &[u8]) -> Result<BackupPart> {
        let ending = if self.is_compressed {
            ".tar.lz4"
        } else {
            ".tar"
        };
        let is_it = |archive: &Option<usize>| match archive {
            None => name == format!("base{ending}").as_bytes(),
            Some(index) => {
                let oid = self.tablespaces[*index].oid;
                name == format!("{oid}{ending}").as_bytes()
            }
        };
        let index = self.expected.iter().position(is_it);
        let index = index.ok_or_else(|| unexpected(&format!("an archive {}", quoted(name))))?;
        Ok(BackupPart::Archive(self.expected.remove(index)))
    }

    /// Reads the end of the backup, and that of the session's answer.
    fn end(&mut self) -> Result<BackupEnd> {
        if !self.expected.is_empty() {
            return Err(unexpected("fewer archives than tablespaces"));
        }
        let rows = self.rows_after_names(1)?;
        let (stop, timeline) = position_of(rows)?;
        let mut has_bad_pages = false;
        for _ in 0..MAX_OTHERS {
            let Message { kind, body } = self.any_message()?;
            match kind {
                b'E' if state_of(&body) == DATA_CORRUPTED => has_bad_pages = true,
                b'E' => return Err(refusal("the server ended the backup", &body)),
                b'C' | b'N' | b'S' => {}
                b'Z' => {
                    return Ok(BackupEnd {
                        stop,
                        timeline,
                        has_bad_pages,
                    });
                }
                kind => return Err(unexpected(&format!("a message of kind {kind}"))),
            }
        }
        Err(unexpected("a backup without an end"))
    }

    fn add_tablespace(&mut self, row: AnswerRow) -> Result<()> {
        let Some(oid) = text_at(&row, 0) else {
            self.expected.push(None);
            return Ok(());
        };
        let oid = oid
            .parse()
            .map_err(|_| unexpected("a tablespace without a number"))?;
        let location = row.into_iter().nth(1).flatten().unwrap_or_default();
        let is_known = self.tablespaces.iter().any(|known| known.oid == oid);
        if is_known || location.is_empty() || location.contains(&0) {
            return Err(unexpected("a tablespace that cannot be"));
        }
        self.expected.push(Some(self.tablespaces.len()));
        self.tablespaces.push(SentTablespace { oid, location });
        Ok(())
    }

    fn position(&mut self) -> Result<(Lsn, u32)> {
        let rows = self.rows(1)?;
        position_of(rows)
    }

    /// Reads an answer with rows.
    fn rows(&mut self, most: usize) -> Result<Vec<AnswerRow>> {
        match self.message()?.kind {
            b'T' => self.rows_after_names(most),
            kind => Err(unexpected(&format!("a message of kind {kind}"))),
        }
    }

    fn rows_after_names(&mut self, most: usize) -> Result<Vec<AnswerRow>> {
        let mut rows = Vec::new();
        loop {
            let Message { kind, body } = self.message()?;
            match kind {
                b'D' if rows.len() < most => rows.push(Fields(&body).row()?),
                b'C' => return Ok(rows),
                b'D' => return Err(unexpected("too many rows")),
                kind => return Err(unexpected(&format!("a message of kind {kind}"))),
            }
        }
    }

    /// Returns the next message that is neither a notice nor an error.
    fn message(&mut self) -> Result<Message> {
        for _ in 0..MAX_OTHERS {
            let message = self.any_message()?;
            match message.kind {
                b'N' | b'S' => {}
                b'E' => return Err(refusal("the server ended the backup", &message.body)),
                _ => return Ok(message),
            }
        }
        Err(unexpected("too many notices"))
    }

    fn any_message(&mut self) -> Result<Message> {
        let message = self.messages.next()?;
        message.ok_or_else(|| lost(&io::ErrorKind::TimedOut.into()))
    }
}

fn position_of(rows: Vec<AnswerRow>) -> Result<(Lsn, u32)> {
    let row = rows.into_iter().next();
    let row = row.ok_or_else(|| unexpected("an answer without a row"))?;
    match (text_at(&row, 0), text_at(&row, 1)) {
        (Some(lsn), Some(timeline)) => Ok((place(&lsn)?, timeline_number(&timeline)?)),
        _ => Err(unexpected("a position without a value")),
    }
}
