//! A command that runs on this host for another one: its repository and its files are those that the other host offers.

use fullbore_format::error::{Error, Result};
use fullbore_platform::{debug, queue::start, write::anonymous_file};
use fullbore_storage::{
    Objects,
    wire::{
        MAX_ANSWER_BYTES, ObjectBody, ObjectService, Offer, PeerSide, ServiceNumber, Wire,
        WireStreams, WireTimes, answer_by,
    },
};
use std::{
    env,
    ffi::OsString,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{self, Command, Stdio},
    sync::Arc,
};

/// The services of the other side that a command on this one may ask.
const PASSED_SERVICES: [ServiceNumber; 3] = [
    ServiceNumber::FILES,
    ServiceNumber::COPY,
    ServiceNumber::REPORT,
];

/// The objects that the other side offers by itself.
#[derive(Debug)]
struct PeerObjects(PeerSide);

impl ObjectService for PeerObjects {
    fn body_limit(&self, body: ObjectBody) -> Result<u64> {
        Ok(body.max_bytes())
    }

    fn open(&self, _: &[u8]) -> Result<Arc<dyn Objects>> {
        Ok(Arc::new(self.0.objects("the other host")?))
    }
}

/// Offers a command on this side all that the other side offers.
fn peer_offer(peer: &PeerSide) -> Offer {
    let offer = Offer::none().objects(PeerObjects(peer.clone()));
    PASSED_SERVICES.into_iter().fold(offer, |offer, number| {
        let peer = peer.clone();
        let pass =
            move |question: &[u8], _: &PeerSide| peer.ask(number, question, MAX_ANSWER_BYTES);
        offer.service(number, answer_by(pass))
    })
}

/// The word for the host that has started a command.
const PEER: &str = "peer:";

/// Runs this program with other arguments. Its standard input leads to the objects of the other side, and its output goes there.
pub(super) fn run_here(mut arguments: Vec<OsString>, peer: &PeerSide) -> Result<u8> {
    let failed = |error| Error::io("could not start fullbore", error);
    let offer = peer_offer(peer);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let program = env::current_exe().map_err(failed)?;
    let report = FarReport::of(&mut arguments)?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let streams = WireStreams {
        input: ours.try_clone().map_err(failed)?.into(),
        output: ours.into(),
    };
    // It ends with the command, which says what was wrong, if it has used the objects at all.
    let serving = start(move || {
        Wire::connect(streams, "the command", offer, WireTimes::default())
            .and_then(Wire::wait)
            .map_err(|error| debug(|| error.line()))
    })?;
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let also = peer.clone();
    let errors = start(move || {
        if let Some(errors) = errors {
            forward(errors, true, &also);
        }
    })?;
    if let Some(output) = output {
        forward(output, false, peer);
    }
    let status = child.wait().map_err(failed)?;
    let _ = errors.join(); // one that panicked has printed all it could
    let _ = serving.join();
    if let Some(report) = report {
        report.send(peer)?;
    }
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1))
}

/// What stands before the path of a report of which the numbers are wanted and not the page.
pub const FAR_NUMBERS: &str = "numbers:";

/// The numbers of the report of a command, until they are sent to the host that has asked for it.
#[derive(Debug)]
struct FarReport(File);

impl FarReport {
    /// Has the command write the numbers of its report to a file without a name, if the other host wants one: `--report peer:`.
    ///
    /// # Errors
    /// The system's.
    fn of(arguments: &mut [OsString]) -> Result<Option<Self>> {
        let option = arguments.iter().position(|word| word == "--report");
        let Some(value) = option.and_then(|at| arguments.get_mut(at + 1)) else {
            return Ok(None);
        };
        if value != PEER {
            return Ok(None);
        }
        let file = anonymous_file(&env::temp_dir())
            .map_err(|error| Error::io("could not make a file for the report", error))?;
        let path = format!("/proc/{}/fd/{}", process::id(), file.as_raw_fd());
        *value = format!("{FAR_NUMBERS}{path}").into();
        Ok(Some(Self(file)))
    }

    /// Sends the report, unless the command has failed and there is none.
    ///
    /// # Errors
    /// The system's; those of the other side.
    fn send(mut self, peer: &PeerSide) -> Result<()> {
        let failed = |error| Error::io("could not read the report", error);
        let mut page = Vec::new();
        self.0.rewind().map_err(failed)?;
        self.0.read_to_end(&mut page).map_err(failed)?;
        if page.is_empty() {
            return Ok(());
        }
        peer.ask(ServiceNumber::REPORT, &page, 0).map(drop)
    }
}

/// Bytes of the output of a command that are sent at once.
const OUTPUT_BYTES: usize = 64 << 10;

/// Sends all lines of a command to the other side, as many at once as there are. Reads on if that is gone, so that the command ends.
fn forward(from: impl Read, is_error: bool, peer: &PeerSide) {
    let mut from = BufReader::with_capacity(OUTPUT_BYTES, from);
    let mut waiting = Vec::new();
    let print = |bytes: &[u8]| {
        if let Err(error) = peer.print(is_error, bytes) {
            debug(|| error.line());
        }
    };
    loop {
        let read = match from.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok([]) | Err(_) => break,
            Ok(bytes) => {
                waiting.extend_from_slice(bytes);
                bytes.len()
            }
        };
        from.consume(read);
        let lines = waiting.iter().rposition(|byte| *byte == b'\n');
        let end = lines.map_or(0, |last| last + 1);
        if end > 0 || waiting.len() >= OUTPUT_BYTES {
            let rest = waiting.split_off(if end > 0 { end } else { waiting.len() });
            print(&waiting);
            waiting = rest;
        }
    }
    if !waiting.is_empty() {
        print(&waiting);
    }
}
