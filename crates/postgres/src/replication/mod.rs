//! A client for physical replication: a session that receives WAL as the server writes it, or a base
//! backup.
//!
//! It is blocking and runs in one thread. Guarantees: a message takes bounded memory, and the WAL that is handed on is
//! without a gap from the place that was asked for. Does not store anything, and does not decide which positions are
//! reported.

mod base_backup;
mod link;
mod message;
mod refusal;
mod startup;
mod stream;

pub use base_backup::{BackupEnd, BackupPart, BaseBackupOptions, BaseBackupStream, SentTablespace};
pub use stream::{TimelineEnd, WalEvent, WalPositions, WalStream};

use crate::{conninfo::Params, lsn::Lsn, wal_archive::MAX_HISTORY_BYTES};
use fullbore_format::error::{Error, ErrorKind, Result};
use message::{Fields, Message, Messages, unexpected};
use refusal::{refusal, state_of};

/// The oldest supported version.
const OLDEST: u32 = 13;
/// The first version with `READ_REPLICATION_SLOT`.
const READS_SLOTS_SINCE: u32 = 15;
/// Rows of an answer, at most.
const MAX_ROWS: usize = 16;
/// Messages of an answer, at most.
const MAX_MESSAGES: usize = 100;
/// Bytes of the name of a slot.
const NAME_BYTES: usize = 63;
/// The SQLSTATE for an object that exists.
const DUPLICATE: &str = "42710";

type AnswerRow = Vec<Option<Vec<u8>>>;

pub struct ReplicationClient {
    messages: Messages,
    major: u32,
}

/// What a server is, and where its WAL ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerIdentity {
    /// Identifies the cluster.
    pub system_identifier: String,
    /// The timeline that the server writes or replays.
    pub timeline: u32,
    /// The end of the WAL that is on the server's disk.
    pub lsn: Lsn,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotState {
    /// The WAL that the slot keeps begins here; `None` if it was not used yet, or has lost its WAL.
    pub restart: Option<Lsn>,
    /// The timeline of that place.
    pub timeline: Option<u32>,
}

impl ReplicationClient {
    /// Connects to the first host that answers, whatever kind of server it is.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] if the server refuses the user, [`ErrorKind::Unreachable`] if no host can be reached,
    /// [`ErrorKind::Unsupported`] if the server is older than 13. No error contains the password.
    pub fn connect(params: &Params) -> Result<Self> {
        let mut failure = None;
        for host in &params.hosts {
            match startup::start(params, host) {
                Ok(started) if started.major < OLDEST => {
                    let message = format!("cannot receive WAL of PostgreSQL {}", started.major);
                    return Err(Error::new(ErrorKind::Unsupported, message)
                        .hint("the oldest version that is supported is 13"));
                }
                Ok(started) => {
                    return Ok(Self {
                        messages: started.messages,
                        major: started.major,
                    });
                }
                Err(error) if error.kind == ErrorKind::Unreachable => {
                    failure = failure.or(Some(error));
                }
                Err(error) => return Err(error),
            }
        }
        Err(failure
            .unwrap_or_else(|| Error::new(ErrorKind::Usage, "there is no host to connect to")))
    }

    /// A session of version `major` in which these bytes arrive, and then the end.
    #[cfg(test)]
    pub(crate) fn of_bytes(major: u32, bytes: Vec<u8>) -> Self {
        use std::{io::Write, os::unix::net::UnixStream, thread};
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || {
            theirs.write_all(&bytes).ok();
            theirs.shutdown(std::net::Shutdown::Write).ok();
            std::io::copy(&mut theirs, &mut std::io::sink()).ok();
        });
        Self {
            messages: Messages::new(link::Link::Socket(ours)),
            major,
        }
    }

    /// Major version of the server.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Asks what the server is.
    ///
    /// # Errors
    /// The server's; those of the connection.
    pub fn identify(&mut self) -> Result<ServerIdentity> {
        let row = self.row("IDENTIFY_SYSTEM")?;
        let [system, timeline, lsn] = [0, 1, 2].map(|column| text_at(&row, column));
        let (Some(system), Some(timeline), Some(lsn)) = (system, timeline, lsn) else {
            return Err(unexpected("an identity without a value"));
        };
        let is_number = !system.is_empty() && system.len() <= 20;
        if !is_number || !system.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(unexpected("a system identifier that is no number"));
        }
        Ok(ServerIdentity {
            system_identifier: system,
            timeline: timeline_number(&timeline)?,
            lsn: place(&lsn)?,
        })
    }

    /// Asks for the bytes of a WAL segment.
    ///
    /// # Errors
    /// As [`ReplicationClient::identify`]; for a size that no server has.
    pub fn segment_bytes(&mut self) -> Result<u64> {
        let text = self.setting("wal_segment_size")?;
        let (digits, shift) = match (text.strip_suffix("MB"), text.strip_suffix("GB")) {
            (Some(digits), _) => (digits, 20),
            (_, Some(digits)) => (digits, 30),
            _ => return Err(unexpected("a segment size without a unit")),
        };
        let bytes = u64::from(number(digits)?) << shift;
        let is_possible = bytes.is_power_of_two() && (1 << 20..=1 << 30).contains(&bytes);
        is_possible
            .then_some(bytes)
            .ok_or_else(|| unexpected("a segment size that cannot be"))
    }

    /// Asks for a setting that every role may read, as the server prints it.
    ///
    /// # Errors
    /// As [`ReplicationClient::identify`]; for a name with other characters than letters and `_`.
    pub fn setting(&mut self, name: &str) -> Result<String> {
        check_slot_name(name)?;
        let row = self.row(&format!("SHOW {name}"))?;
        Ok(text_at(&row, 0).unwrap_or_default())
    }

    /// Makes a slot that keeps WAL from the last checkpoint on, as long as this session lasts.
    ///
    /// # Errors
    /// As [`ReplicationClient::identify`]; the server's if it has no slot left.
    pub fn hold_wal(&mut self, name: &str) -> Result<()> {
        check_slot_name(name)?;
        let sql = format!("CREATE_REPLICATION_SLOT {name} TEMPORARY PHYSICAL RESERVE_WAL");
        self.answer(&sql)?
            .map(drop)
            .map_err(|body| refusal("could not make a temporary replication slot", &body))
    }

    /// Asks for a physical slot; `None` if there is none, or if the server is older than 15 and cannot tell.
    ///
    /// # Errors
    /// As [`ReplicationClient::identify`]; [`ErrorKind::Unsupported`] for a logical slot.
    pub fn slot(&mut self, name: &str) -> Result<Option<SlotState>> {
        check_slot_name(name)?;
        if self.major < READS_SLOTS_SINCE {
            return Ok(None);
        }
        let row = self.row(&format!("READ_REPLICATION_SLOT {name}"))?;
        match text_at(&row, 0).as_deref() {
            None => Ok(None),
            Some("physical") => {
                let restart = text_at(&row, 1).map(|lsn| place(&lsn)).transpose()?;
                let timeline = text_at(&row, 2)
                    .map(|text| timeline_number(&text))
                    .transpose()?;
                Ok(Some(SlotState { restart, timeline }))
            }
            Some(_) => {
                let message = format!("cannot receive WAL with slot {name:?}: it is not physical");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }

    /// Returns whether the server can say that there is no slot.
    pub fn can_read_slots(&self) -> bool {
        self.major >= READS_SLOTS_SINCE
    }

    /// Makes a physical slot that keeps WAL from now on. Returns false if a slot of this name exists.
    ///
    /// # Errors
    /// As [`ReplicationClient::identify`].
    pub fn create_slot(&mut self, name: &str) -> Result<bool> {
        check_slot_name(name)?;
        let sql = format!("CREATE_REPLICATION_SLOT {name} PHYSICAL RESERVE_WAL");
        match self.answer(&sql)? {
            Ok(_) => Ok(true),
            Err(body) if state_of(&body) == DUPLICATE => Ok(false),
            Err(body) => Err(refusal("could not make the replication slot", &body)),
        }
    }

    /// Removes a slot.
    ///
    /// # Errors
    /// As [`ReplicationClient::identify`]; the server's, as for one that is in use.
    pub fn drop_slot(&mut self, name: &str) -> Result<()> {
        check_slot_name(name)?;
        self.answer(&format!("DROP_REPLICATION_SLOT {name}"))?
            .map(drop)
            .map_err(|body| refusal("could not remove the replication slot", &body))
    }

    /// Asks for the history file of a timeline: its content.
    ///
    /// # Errors
    /// As [`ReplicationClient::identify`]; the server's for timeline 1, which has none.
    pub fn timeline_history(&mut self, timeline: u32) -> Result<Vec<u8>> {
        let row = self.row(&format!("TIMELINE_HISTORY {timeline}"))?;
        let content = row.into_iter().nth(1).flatten();
        let content = content.ok_or_else(|| unexpected("a history without content"))?;
        match content.len() as u64 <= MAX_HISTORY_BYTES {
            true => Ok(content),
            false => Err(unexpected("a history that is too long")),
        }
    }

    /// Begins to receive WAL of a timeline from `start` on, with a slot or without.
    ///
    /// # Errors
    /// The server's; those of the connection. A server says only with the first message of the stream that it does not
    /// have this WAL.
    pub fn stream(
        &mut self,
        slot: Option<&str>,
        start: Lsn,
        timeline: u32,
    ) -> Result<WalStream<'_>> {
        slot.map_or(Ok(()), check_slot_name)?;
        let slot = slot.map_or_else(String::new, |name| format!("SLOT {name} "));
        let sql = format!("START_REPLICATION {slot}PHYSICAL {start} TIMELINE {timeline}");
        self.send(&sql)?;
        WalStream::begin(&mut self.messages, start)
    }

    fn send(&mut self, sql: &str) -> Result<()> {
        if self.messages.is_streaming {
            let message = "the session was left in the middle of a stream of WAL";
            return Err(Error::new(ErrorKind::Unreachable, message).hint("connect again"));
        }
        // The answer to a command may take as long as a checkpoint.
        self.messages.link().set_patience(None)?;
        let mut body = sql.as_bytes().to_vec();
        body.push(0);
        self.messages.write(Some(b'Q'), &body)
    }

    /// Runs a command whose answer has one row.
    fn row(&mut self, sql: &str) -> Result<AnswerRow> {
        let rows = self
            .answer(sql)?
            .map_err(|body| refusal(&format!("the server refused {sql:?}"), &body))?;
        rows.into_iter()
            .next()
            .ok_or_else(|| unexpected("an answer without a row"))
    }

    /// Runs a command. The inner error is the body of the server's error.
    fn answer(&mut self, sql: &str) -> Result<Result<Vec<AnswerRow>, Vec<u8>>> {
        self.send(sql)?;
        read_answer(&mut self.messages)
    }
}

/// Reads messages until the server is ready for the next command.
fn read_answer(messages: &mut Messages) -> Result<Result<Vec<AnswerRow>, Vec<u8>>> {
    let mut rows = Vec::new();
    let mut refused = None;
    for _ in 0..MAX_MESSAGES {
        let Some(Message { kind, body }) = messages.next()? else {
            continue;
        };
        match kind {
            b'D' if rows.len() < MAX_ROWS => rows.push(Fields(&body).row()?),
            b'D' => return Err(unexpected("too many rows")),
            // An error is followed by "ready": it is read to the end, so that the session stays
            // usable.
            b'E' => refused = Some(body),
            b'T' | b'C' | b'N' | b'S' | b'c' | b'I' => {}
            b'Z' => return Ok(refused.map_or(Ok(rows), Err)),
            kind => return Err(unexpected(&format!("a message of kind {kind}"))),
        }
    }
    Err(unexpected("an answer without an end"))
}

/// The names that a server permits; other characters would become part of a command.
fn check_slot_name(name: &str) -> Result<()> {
    if (1..=NAME_BYTES).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    {
        return Ok(());
    }
    let message = format!("{name:?} cannot be the name of a replication slot");
    Err(Error::new(ErrorKind::Usage, message)
        .hint("use lower-case letters, digits and _, at most 63 of them"))
}

fn text_at(row: &AnswerRow, column: usize) -> Option<String> {
    let value = row.get(column)?.as_ref()?;
    Some(String::from_utf8_lossy(value).into_owned())
}

/// Timelines are counted from 1.
fn timeline_number(text: &str) -> Result<u32> {
    match number(text)? {
        0 => Err(unexpected("timeline 0")),
        timeline => Ok(timeline),
    }
}

/// Reads a place in the WAL that a server can have.
fn place(text: &str) -> Result<Lsn> {
    let place: Lsn = text.parse()?;
    match place.0 <= stream::MAX_PLACE {
        true => Ok(place),
        false => Err(unexpected(&format!(
            "the place {place}, which no server reaches"
        ))),
    }
}

fn number(text: &str) -> Result<u32> {
    text.parse()
        .map_err(|_| unexpected(&format!("{text:?} in the place of a number")))
}
