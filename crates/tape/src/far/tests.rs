//! A drive of another host behaves as one of this host, and neither side does what it should not.

use super::{
    call::{FoundEnd, PushedItem, RingWords, StopWord, TapeAnswer, TapeCall, packed, unpacked},
    *,
};
use crate::{
    Drive, Fault, PaceSettings, ReadOutcome, RecordOutcome, RingDrive, RingItem, RingSettings,
    RingStop, Space, TapeDrive, TapeLabel,
    sim::{SimClock, SimDevice, SimSettings},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

const RECORD: usize = 4096;

fn settings() -> SimSettings {
    SimSettings {
        capacity_bytes: 100 * RECORD as u64,
        warning_bytes: 10 * RECORD as u64,
        buffer_bytes: 8 * RECORD as u64,
        ..SimSettings::default()
    }
}

/// A host with one cartridge in its drive, which is replaced by a blank one when it is unloaded and opened again.
fn host(dir: &Path, rights: TapeRights) -> ServedDrive {
    let place = dir.join("tape");
    ServedDrive::new(rights, move |name: &OsStr, _| {
        assert_eq!(name, "drive");
        let device = match place.exists() {
            true => SimDevice::open(&place),
            false => SimDevice::create(&place, settings(), SimClock::virtual_time()),
        };
        Ok(Box::new(TapeDrive::new(device.unwrap(), "drive")) as Box<dyn RingDrive>)
    })
}

#[derive(Debug)]
struct Direct(ServedDrive);

impl TapeChannel for Direct {
    fn ask(&self, question: &[u8], max_bytes: u64) -> Result<Vec<u8>> {
        let answer = self.0.answer(question)?;
        assert!(answer.len() as u64 <= max_bytes);
        Ok(answer)
    }
}

fn channel(served: ServedDrive) -> Arc<dyn TapeChannel> {
    Arc::new(Direct(served))
}

fn opened(channel: &Arc<dyn TapeChannel>, usage: TapeUse) -> Result<Box<dyn RingDrive>> {
    open_far(channel, b"drive", usage, "ssh://far/drive")
}

fn record(number: u64) -> Vec<u8> {
    let mut record = vec![0; RECORD];
    record[..8].copy_from_slice(&number.to_le_bytes());
    record
}

fn ring_settings() -> RingSettings {
    RingSettings {
        pace: PaceSettings {
            ring_bytes: 16 * RECORD as u64,
            lowest_rate: 300e6,
        },
        most_kept_bytes: 32 * RECORD as u64,
    }
}

fn read_all(drive: &mut dyn Drive) -> Vec<Option<u64>> {
    let mut buffer = vec![0; RECORD];
    let mut found = Vec::new();
    loop {
        match drive.read(&mut buffer).unwrap() {
            ReadOutcome::EndOfData => return found,
            ReadOutcome::Mark => found.push(None),
            ReadOutcome::Record(_) => {
                found.push(Some(u64::from_le_bytes(buffer[..8].try_into().unwrap())));
            }
        }
    }
}

#[test]
fn a_far_drive_reads_ahead_and_its_head_is_where_a_near_one_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let far = channel(host(dir.path(), TapeRights::All));
    let mut drive = opened(&far, TapeUse::Write).unwrap();
    for file in 0..3 {
        for number in 0..20 {
            let written = drive.record(&record(file * 100 + number)).unwrap();
            assert_eq!(written, RecordOutcome::Taken);
        }
        drive.mark().unwrap();
    }
    drive.flush().unwrap();
    drive.rewind().unwrap();
    let all = read_all(&mut *drive);
    assert_eq!(all.len(), 63);
    assert_eq!((all[20], all[21], all[62]), (None, Some(100), None));
    drive.rewind().unwrap();
    let mut buffer = vec![0; RECORD];
    for number in 0..7 {
        assert_eq!(drive.position().unwrap().next, number);
        drive.read(&mut buffer).unwrap();
        assert_eq!(buffer, record(number));
    }
    // Relative moves count from the record that was asked for, not from those read ahead.
    drive.space(Space::Records(-2)).unwrap();
    assert_eq!(drive.position().unwrap().next, 5);
    drive.read(&mut buffer).unwrap();
    assert_eq!(buffer, record(5));
    for _ in 0..5 {
        drive.read(&mut buffer).unwrap();
    }
    drive.space(Space::Marks(1)).unwrap();
    drive.read(&mut buffer).unwrap();
    assert_eq!(buffer, record(100));
    drive.locate(45).unwrap();
    for _ in 0..5 {
        drive.read(&mut buffer).unwrap();
    }
    // A write goes behind what was read, too.
    drive.record(&record(999)).unwrap();
    drive.mark().unwrap();
    drive.rewind().unwrap();
    let all = read_all(&mut *drive);
    assert_eq!(all[49..], [Some(207), Some(999), None]);
    drive.close().unwrap();
}

/// Writes so many records through a ring, over as many cartridges as they need. Returns the cartridges.
fn write_over_tapes(dir: &Path, count: u64) -> Vec<PathBuf> {
    let far = channel(host(dir, TapeRights::All));
    let mut tapes = Vec::new();
    let mut waiting: std::collections::VecDeque<_> = (0..count)
        .map(|number| RingItem::Record(Arc::new(record(number))))
        .collect();
    loop {
        let drive = opened(&far, TapeUse::Write).unwrap();
        let ring = drive.begin_ring(0, ring_settings()).unwrap();
        while let Some(item) = waiting.pop_front() {
            if let Some(refused) = ring.push(item) {
                waiting.push_front(refused);
                break;
            }
        }
        let mut end = ring.finish().unwrap();
        let has_ended = matches!(end.stop, RingStop::Ended);
        assert!(
            has_ended || matches!(end.stop, RingStop::Full),
            "{:?}",
            end.stop
        );
        end.left.append(&mut waiting);
        waiting = end.left;
        end.drive.unload().unwrap();
        end.drive.close().unwrap();
        let tape = dir.join(format!("tape{}", tapes.len()));
        std::fs::rename(dir.join("tape"), &tape).unwrap();
        tapes.push(tape);
        if waiting.is_empty() {
            assert!(has_ended);
            return tapes;
        }
    }
}

#[test]
fn records_that_a_tape_did_not_take_go_to_the_next_one_once_and_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    // Batches are longer than a tape: most of what is left was refused, and is left again.
    let tapes = write_over_tapes(dir.path(), 1_730);
    assert_eq!(tapes.len(), 18);
    let mut all = Vec::new();
    for tape in tapes {
        let mut drive = TapeDrive::new(SimDevice::open(&tape).unwrap(), "near");
        drive.rewind().unwrap();
        all.extend(read_all(&mut drive).into_iter().flatten());
    }
    assert_eq!(all, (0..1_730).collect::<Vec<_>>());
}

#[test]
fn a_command_does_only_what_it_has_opened_the_drive_for() {
    let dir = tempfile::tempdir().unwrap();
    let far = channel(host(dir.path(), TapeRights::All));
    let mut drive = opened(&far, TapeUse::Write).unwrap();
    drive.record(&record(1)).unwrap();
    assert_eq!(drive.erase().unwrap_err().fault, Fault::NotAllowed);
    drive.close().unwrap();
    let mut drive = opened(&far, TapeUse::Read).unwrap();
    drive.rewind().unwrap();
    for refused in [
        drive.record(&record(2)).map(drop),
        drive.mark().map(drop),
        drive.flush(),
        drive.erase(),
    ] {
        assert_eq!(refused.unwrap_err().fault, Fault::NotAllowed);
    }
    drive.close().unwrap();
    let drive = opened(&far, TapeUse::Read).unwrap();
    let refused = drive.begin_ring(0, ring_settings()).map(drop).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Permission);
    // That one was dropped and is still open there: one at a time.
    let again = opened(&far, TapeUse::Ask).map(drop).unwrap_err();
    assert_eq!(again.kind, ErrorKind::Corrupt);
    let far = channel(host(dir.path(), TapeRights::All));
    let mut drive = opened(&far, TapeUse::Ask).unwrap();
    assert!(drive.status().unwrap().online);
    assert_eq!(drive.rewind().unwrap_err().fault, Fault::NotAllowed);
    assert_eq!(drive.unload().unwrap_err().fault, Fault::NotAllowed);
    let read = drive.read(&mut [0; 10]).unwrap_err();
    assert_eq!(read.fault, Fault::NotAllowed);
}

#[test]
fn a_host_gets_one_drive_and_no_more_than_it_was_given() {
    let dir = tempfile::tempdir().unwrap();
    let granted = |grant| TapeRights::One {
        drive: "drive".into(),
        grant,
    };
    for (grant, most) in [
        (TapeGrant::Read, TapeUse::Read),
        (TapeGrant::Append, TapeUse::Write),
        (TapeGrant::Write, TapeUse::Erase),
    ] {
        for usage in [TapeUse::Ask, TapeUse::Read, TapeUse::Write, TapeUse::Erase] {
            let far = channel(host(dir.path(), granted(grant)));
            let open = opened(&far, usage).map(drop);
            assert_eq!(open.is_ok(), usage <= most, "{grant:?} {usage:?}");
            if let Err(error) = open {
                assert_eq!(error.kind, ErrorKind::Permission);
            }
        }
    }
    // The name is compared, and nothing is opened for another one.
    for name in ["/dev/sda", "sim:/etc/shadow", "drive/", "./drive", ""] {
        let far = channel(host(dir.path(), granted(TapeGrant::Write)));
        let refused = open_far(&far, name.as_bytes(), TapeUse::Ask, name);
        let refused = refused.map(drop).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Permission, "{name}");
    }
}

#[test]
fn a_host_that_may_append_replaces_no_backup() {
    let dir = tempfile::tempdir().unwrap();
    let appends = || {
        let rights = TapeRights::One {
            drive: "drive".into(),
            grant: TapeGrant::Append,
        };
        channel(host(dir.path(), rights))
    };
    let label = |set: &str, expires: &str| {
        let label = TapeLabel {
            tape: "A1".into(),
            set: set.into(),
            expires: expires.into(),
            ..TapeLabel::default()
        };
        label.to_record().unwrap()
    };
    let far = appends();
    let mut drive = opened(&far, TapeUse::Write).unwrap();
    // A blank tape, and one that has only a name.
    drive.record(&label("", "")).unwrap();
    drive.mark().unwrap();
    drive.rewind().unwrap();
    drive.record(&label("20261121T054501Z-k3f9qz", "")).unwrap();
    drive.mark().unwrap();
    for number in 0..10 {
        drive.record(&record(number)).unwrap();
    }
    drive.mark().unwrap();
    let refused = |result: crate::DriveResult<RecordOutcome>| {
        assert_eq!(result.unwrap_err().fault, Fault::NotAllowed);
    };
    for place in [0, 1, 2, 5, 12] {
        drive.locate(place).unwrap();
        refused(drive.record(&record(99)));
        drive.locate(place).unwrap();
        refused(drive.mark());
    }
    drive.close().unwrap();
    for (place, told) in [(0, 0), (5, 5), (13, 5), (5, 13)] {
        let far = appends();
        let mut drive = opened(&far, TapeUse::Write).unwrap();
        drive.locate(place).unwrap();
        // Also not by a lie about the place, to which a ring goes back after an error.
        let begun = drive.begin_ring(told, ring_settings());
        assert!(begun.is_err(), "{place} {told}");
    }
    let far = appends();
    let mut drive = opened(&far, TapeUse::Write).unwrap();
    drive.space(Space::EndOfData).unwrap();
    let ring = drive.begin_ring(13, ring_settings()).unwrap();
    assert!(ring.push(RingItem::Record(Arc::new(record(10)))).is_none());
    assert!(ring.push(RingItem::Mark).is_none());
    let mut end = ring.finish().unwrap();
    assert!(matches!(end.stop, RingStop::Ended));
    end.drive.locate(2).unwrap();
    assert_eq!(read_all(&mut *end.drive).len(), 13);
    end.drive.close().unwrap();
    // Its backups are over: it may be written from the begin.
    let mut near = opened(&channel(host(dir.path(), TapeRights::All)), TapeUse::Write).unwrap();
    near.rewind().unwrap();
    near.record(&label("20261121T054501Z-k3f9qz", "2020-01-01T00:00:00Z"))
        .unwrap();
    near.mark().unwrap();
    near.close().unwrap();
    let mut drive = opened(&appends(), TapeUse::Write).unwrap();
    drive.rewind().unwrap();
    drive.record(&label("", "")).unwrap();
}

#[test]
fn questions_that_are_none_change_nothing_and_take_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let served = host(dir.path(), TapeRights::All);
    let ask = |call: &TapeCall, body: &[u8]| served.answer(&packed(call, body));
    let push = |number, items: &[PushedItem]| TapeCall::Push {
        number,
        items: items.to_vec(),
    };
    for bytes in [
        &b""[..],
        b"\0\0\0\0",
        &[255; 4],
        &[1, 0, 0, 0, 0xff],
        &[0; 40],
    ] {
        assert_eq!(served.answer(bytes).unwrap_err().kind, ErrorKind::Corrupt);
    }
    // Nothing is open.
    for call in [
        TapeCall::Rewind,
        TapeCall::FinishRing,
        push(0, &[PushedItem::Mark]),
    ] {
        assert_eq!(ask(&call, b"").unwrap_err().kind, ErrorKind::Permission);
    }
    let open = TapeCall::Open {
        drive: b"drive".to_vec().into(),
        usage: TapeUse::Write,
    };
    ask(&open, b"").unwrap();
    ask(&push(0, &[PushedItem::Mark]), b"").unwrap_err();
    ask(&TapeCall::FinishRing, b"").unwrap_err();
    ask(&TapeCall::Record, b"").unwrap_err();
    let begin = TapeCall::BeginRing {
        first: 0,
        ring_bytes: u64::MAX,
        lowest_rate: f64::NAN,
        most_kept_bytes: u64::MAX,
    };
    ask(&begin, b"").unwrap();
    ask(&TapeCall::Rewind, b"").unwrap_err();
    for (items, body) in [
        (vec![PushedItem::Record(u32::MAX)], &b"x"[..]),
        (vec![PushedItem::Record(0)], b""),
        (vec![PushedItem::Held(0)], b""),
        (vec![PushedItem::Mark; 5000], b""),
    ] {
        let number = match items.len() {
            1 if items[0] == PushedItem::Record(u32::MAX) => 0,
            1 if items[0] == PushedItem::Record(0) => 1,
            1 => 2,
            _ => 3,
        };
        let refused = ask(&push(number, &items), body).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Corrupt, "{items:?}");
    }
    // A batch that came before is not taken again.
    ask(&push(1, &[PushedItem::Mark]), b"").unwrap_err();
    ask(&TapeCall::FinishRing, b"").unwrap();
    let read = packed(
        &TapeCall::Read {
            most: u32::MAX,
            count: u32::MAX,
        },
        b"",
    );
    assert_eq!(question_room(&read), 16 << 20);
    served.end().unwrap();
}

/// A host that answers the same to each question.
#[derive(Debug)]
struct Nonsense(Mutex<Vec<Vec<u8>>>);

impl TapeChannel for Nonsense {
    fn ask(&self, question: &[u8], _: u64) -> Result<Vec<u8>> {
        let (call, _): (TapeCall, _) = unpacked(question)?;
        match call {
            TapeCall::Open { .. } => Ok(packed(&good(), b"")),
            TapeCall::BeginRing { .. } => Ok(packed(&TapeAnswer::Done, b"")),
            _ => {
                let answers = self.0.lock().unwrap();
                answers.first().cloned().ok_or_else(lost)
            }
        }
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Unreachable, "the connection is lost")
}

fn good() -> TapeAnswer {
    TapeAnswer::Opened {
        least_bytes: 1,
        most_bytes: 1 << 20,
        usual_buffer_bytes: u64::MAX,
    }
}

fn answering(answers: &[(TapeAnswer, &[u8])]) -> Box<dyn RingDrive> {
    let answers = answers.iter().map(|(words, body)| packed(words, body));
    let channel: Arc<dyn TapeChannel> = Arc::new(Nonsense(Mutex::new(answers.collect())));
    opened(&channel, TapeUse::Write).unwrap()
}

#[test]
fn answers_that_are_none_are_errors_and_no_panics() {
    let found = |records: &[u32], end| TapeAnswer::Found {
        records: records.to_vec(),
        end,
    };
    let mut buffer = vec![0; RECORD];
    for (answer, body) in [
        (TapeAnswer::Done, &b""[..]),
        (found(&[], FoundEnd::More), b""),
        (found(&[u32::MAX], FoundEnd::More), b"x"),
        (found(&[0], FoundEnd::More), b""),
        (found(&[1, 1], FoundEnd::More), b"xx"),
        (found(&[1], FoundEnd::More), b"xx"),
        (
            found(&[RECORD as u32 + 1], FoundEnd::More),
            &[7; RECORD + 1],
        ),
        (
            TapeAnswer::Pushed {
                is_near_end: true,
                is_stopped: true,
            },
            b"",
        ),
    ] {
        let mut drive = answering(&[(answer.clone(), body)]);
        assert!(drive.read(&mut buffer).is_err(), "{answer:?}");
        let mut drive = answering(&[(answer.clone(), body)]);
        assert!(drive.position().is_err() && drive.status().is_err());
        assert!(drive.record(&record(1)).is_err(), "{answer:?}");
        assert_eq!(drive.lowest_rate(), 0.0);
    }
    let far = |next| TapeAnswer::Place {
        next,
        on_medium: None,
    };
    assert!(answering(&[(far(u64::MAX), b"")]).position().is_err());
    assert_eq!(answering(&[(far(7), b"")]).position().unwrap().next, 7);
    for rate in [f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(
            answering(&[(TapeAnswer::Rate(rate), b"")]).lowest_rate(),
            0.0
        );
    }
    let mut lost = answering(&[]);
    assert_eq!(lost.rewind().unwrap_err().fault, Fault::HostLost);
    let error = lost.flush().unwrap_err().into_error();
    assert_eq!(error.kind, ErrorKind::Unreachable);
}

#[test]
fn a_ring_whose_host_loses_records_or_counts_more_is_an_error() {
    let words = |left: &[u32], first_left, stop| {
        TapeAnswer::RingEnded(RingWords {
            stop,
            left: left.to_vec(),
            first_serial: u64::MAX,
            first_left,
            starts: u64::MAX,
            rewrites: 0,
        })
    };
    for (answer, is_sound) in [
        (words(&[], 10, StopWord::Ended), true),
        (words(&[9, 9], 8, StopWord::Full), true),
        (words(&[], 9, StopWord::Ended), false),
        (words(&[], u64::MAX, StopWord::Ended), false),
        (words(&[9, 9], 9, StopWord::Full), false),
        (words(&[9; 4], 6, StopWord::Ended), false),
        (words(&[], 4, StopWord::Full), false),
        (TapeAnswer::Done, false),
    ] {
        let answers = [(answer.clone(), &b""[..])];
        let ring = answering(&answers).begin_ring(10, ring_settings()).unwrap();
        let end = ring.finish();
        let empty = matches!(&answer, TapeAnswer::RingEnded(words) if words.left.is_empty() && words.first_left == 10);
        assert_eq!(end.is_ok(), is_sound && empty, "{answer:?}");
    }
    // Of two records, both are left, or the connection is lost.
    let left = [(words(&[9, 9], 10, StopWord::Full), &b""[..])];
    let ring = answering(&left).begin_ring(10, ring_settings()).unwrap();
    // Their batch is answered by words of another question.
    let _ = ring.push(RingItem::Record(Arc::new(record(1))));
    assert!(ring.finish().is_err());
    let ring = answering(&[]).begin_ring(10, ring_settings()).unwrap();
    let _ = ring.push(RingItem::Record(Arc::new(record(1))));
    let failed = ring.finish().map(drop).unwrap_err();
    assert_eq!(failed.kind, ErrorKind::Unreachable);
}

#[test]
fn what_came_before_the_session_was_lost_is_on_the_tape() {
    let dir = tempfile::tempdir().unwrap();
    let served = Arc::new(host(dir.path(), TapeRights::All));
    let ask = |call: &TapeCall, body: &[u8]| served.answer(&packed(call, body)).unwrap();
    ask(
        &TapeCall::Open {
            drive: b"drive".to_vec().into(),
            usage: TapeUse::Write,
        },
        b"",
    );
    ask(
        &TapeCall::BeginRing {
            first: 0,
            ring_bytes: 1 << 20,
            lowest_rate: 0.0,
            most_kept_bytes: 1 << 20,
        },
        b"",
    );
    let items = [PushedItem::Record(RECORD as u32), PushedItem::Mark];
    for number in 0..5 {
        let call = TapeCall::Push {
            number,
            items: items.to_vec(),
        };
        ask(&call, &record(number));
    }
    served.end().unwrap();
    let mut drive = TapeDrive::new(SimDevice::open(&dir.path().join("tape")).unwrap(), "near");
    drive.rewind().unwrap();
    let found: Vec<_> = read_all(&mut drive).into_iter().flatten().collect();
    assert_eq!(found, [0, 1, 2, 3, 4]);
}
