//! A command that runs on this host for another one: its repository and its files are those that the other host offers.

use super::far_output::{FarReport, forward};
use fullbore_format::error::{Error, Result};
use fullbore_platform::{debug, queue::start};
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
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Command, Stdio},
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
