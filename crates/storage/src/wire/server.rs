//! Answers the calls of the other side.
//!
//! The reader of the connection hands over calls and never waits: worker threads do them, at most [`MAX_WORKERS`] at a time and in any
//! order, and each open upload has a thread of its own, which keeps its order. What waits to be done is bounded, since the other side may
//! send no more than it was given room for.

use super::{
    bodies::{Arriving, AskedCall, BodyLimit, Job},
    calls::{MAX_CALLS, UPLOAD_WINDOW},
    credit::{ReceiveCredit, append_cost},
    delete_keys::decode_keys,
    documents::WholeObjects,
    end::violated,
    leases::ServedLeases,
    line::Line,
    offer::Offer,
    peer::PeerSide,
    upload::{UploadHost, UploadStep, run_upload},
    workers::{ServingThread, Work},
};
use crate::{Objects, Put};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::{ByteRoom, Locked, Monitor, start};
use fullbore_wire::{
    frame::MAX_DATA,
    message::{Call, CallAnswer, Message, encode},
    object_call::{ObjectAnswer, ObjectCall},
    service::ServiceNumber,
    wire_error::WireError,
};
use std::{
    collections::BTreeMap,
    num::NonZeroU64,
    sync::{
        Arc, Mutex,
        atomic::{
            AtomicUsize,
            Ordering::{AcqRel, Acquire},
        },
        mpsc,
    },
};

/// Calls that are done at the same time.
const MAX_WORKERS: usize = 24;

/// Uploads that are open at the same time.
const MAX_UPLOADS: usize = 256;

/// Threads of uploads: those of uploads that are open, and as many that still answer.
const MAX_UPLOAD_THREADS: usize = 2 * MAX_UPLOADS;

/// Bytes of uploads that were stored before the other side is told so: each message is a system call on both sides.
pub(super) const CREDIT_STEP: u64 = MAX_DATA as u64;

/// The calls of the other side.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) line: Arc<Line>,
    offer: Offer,
    /// The other side, for services that ask it in turn.
    peer: PeerSide,
    opened: Monitor<ServedObjects>,
    pub(super) work: Monitor<Work>,
    /// Calls that were taken and not answered.
    calls: AtomicUsize,
    /// Bytes of the data of those calls, and of calls that are not here as a whole.
    body_bytes: AtomicUsize,
    upload_credit: ReceiveCredit,
    /// Objects that are put or read as a whole.
    pub(super) whole: WholeObjects,
    uploads: Mutex<BTreeMap<u64, mpsc::Sender<UploadStep>>>,
    pub(super) leases: ServedLeases,
    /// Held while a listing is made and sent: it takes more memory than it has bytes.
    pub(super) listing: Mutex<()>,
}

/// An answer, and the room that it takes until it is sent.
#[derive(Debug)]
pub(super) struct ServedAnswer<'s> {
    pub(super) answer: CallAnswer,
    pub(super) data: Vec<u8>,
    pub(super) room: Option<ByteRoom<'s>>,
}

impl ServedAnswer<'_> {
    /// Returns an answer that is nothing but its data.
    pub(super) fn bytes(data: Vec<u8>) -> Self {
        Self {
            answer: CallAnswer::bytes(),
            data,
            room: None,
        }
    }

    /// Returns an answer of the service of objects, without data.
    pub(super) fn of_objects(answer: &ObjectAnswer) -> Self {
        Self {
            answer: CallAnswer::Done(encode(answer).into()),
            ..Self::bytes(Vec::new())
        }
    }

    fn failed(error: &Error) -> Self {
        Self {
            answer: CallAnswer::Failed(WireError::of(error)),
            ..Self::bytes(Vec::new())
        }
    }
}

/// The objects that the other side wants to use.
#[derive(Debug, Default)]
struct ServedObjects {
    /// They are being opened; calls that came later wait.
    is_opening: bool,
    opened: Option<Result<Arc<dyn Objects>, WireError>>,
}

impl Server {
    pub(super) fn new(line: Arc<Line>, offer: Offer, peer: PeerSide) -> Self {
        Self {
            line,
            offer,
            peer,
            opened: Monitor::default(),
            work: Monitor::default(),
            calls: AtomicUsize::new(0),
            body_bytes: AtomicUsize::new(0),
            upload_credit: ReceiveCredit::new(UPLOAD_WINDOW, CREDIT_STEP),
            whole: WholeObjects::default(),
            uploads: Mutex::default(),
            leases: ServedLeases::default(),
            listing: Mutex::default(),
        }
    }

    /// Keeps further data of a call, and takes the call if it is whole.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the other side sends more than it may; as [`Server::accept`].
    pub(super) fn add_part(
        self: &Arc<Self>,
        arriving: &mut Arriving,
        id: u64,
        data: &[u8],
    ) -> Result<()> {
        match arriving.add_part(id, data)? {
            Some(job) => self.accept_whole(job),
            None => Ok(()),
        }
    }

    /// Takes a call with the beginning of its data. One that is not understood is answered with an error.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the other side makes more calls than it may, sends more than it may or uses a number twice; no thread
    /// could be started.
    pub(super) fn accept(
        self: &Arc<Self>,
        arriving: &mut Arriving,
        call: (u64, Option<Call>, Option<NonZeroU64>),
        data: &[u8],
    ) -> Result<()> {
        let (id, call, following) = call;
        let call = match AskedCall::read(call.as_ref()) {
            Ok(call) => call,
            Err(error) => return self.accept_whole(Job::refused(id, error)),
        };
        let limit = BodyLimit::of(&call, &self.offer, self.whole.put_limit());
        let call = (id, call, following);
        match arriving.begin(limit, &self.body_bytes, call, data)? {
            Some(job) => self.accept_whole(job),
            None => Ok(()),
        }
    }

    fn accept_whole(self: &Arc<Self>, job: Job) -> Result<()> {
        if self.calls.fetch_add(1, AcqRel) >= MAX_CALLS {
            return Err(violated("it makes more calls than it may"));
        }
        let Job { id, asked } = job;
        match asked {
            Ok((AskedCall::Objects(ObjectCall::Amend { upload, offset }), body)) => {
                self.pass(upload, false, UploadStep::Amend { id, offset, body })
            }
            Ok((AskedCall::Objects(ObjectCall::Finish { upload }), _)) => {
                self.pass(upload, true, UploadStep::Finish { id })
            }
            Ok((AskedCall::Objects(ObjectCall::Abort { upload }), _)) => {
                self.pass(upload, true, UploadStep::Abort { id })
            }
            asked => {
                // Before the next call is read: one that comes later waits for the objects.
                if matches!(asked, Ok((AskedCall::Objects(ObjectCall::Open { .. }), _))) {
                    self.opened.change(|opened| opened.is_opening = true);
                }
                self.queue(Job { id, asked })
            }
        }
    }

    /// Takes data of an upload.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if there is no such upload, or more data than there is room for.
    pub(super) fn append(&self, upload: u64, data: Vec<u8>) -> Result<()> {
        self.upload_credit.arrive(append_cost(data.len()))?;
        self.pass(upload, false, UploadStep::Append(data))
    }

    fn pass(&self, upload: u64, is_last: bool, step: UploadStep) -> Result<()> {
        let mut uploads = self.uploads.locked();
        let queue = if is_last {
            uploads.remove(&upload)
        } else {
            uploads.get(&upload).cloned()
        };
        drop(uploads);
        // The thread of an upload ends before its last step only with the connection.
        queue
            .and_then(|queue| queue.send(step).ok())
            .ok_or_else(|| violated("it writes to an upload that is not open"))
    }

    /// Begins an upload.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if too many are open, or one has this number; no thread could be started.
    pub(super) fn begin_upload(self: &Arc<Self>, id: u64, key: String) -> Result<()> {
        let (sender, steps) = mpsc::channel();
        let mut uploads = self.uploads.locked();
        if uploads.len() >= MAX_UPLOADS || uploads.insert(id, sender).is_some() {
            return Err(violated("it opens too many uploads"));
        }
        drop(uploads);
        let threads = self.work.lock().0.upload_threads();
        if threads >= MAX_UPLOAD_THREADS {
            return Err(violated("it opens uploads and takes no answers"));
        }
        self.start_thread(false, move |server| run_upload(&**server, id, &key, steps))
    }

    fn queue(self: &Arc<Self>, job: Job) -> Result<()> {
        let mut work = self.work.lock();
        work.0.queue.push_back(job);
        let is_short = work.0.queue.len() > work.0.idle && work.0.workers < MAX_WORKERS;
        if is_short {
            work.0.workers += 1;
        }
        // Each idle worker can do each call.
        self.work.wake(work, false);
        if is_short {
            self.start_thread(true, |server| server.work())?;
        }
        Ok(())
    }

    fn start_thread(
        self: &Arc<Self>,
        is_worker: bool,
        run: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> Result<()> {
        self.work.lock().0.threads += 1;
        let server = self.clone();
        let counted = (self.clone(), is_worker);
        let running = ServingThread::new(self.line.clone(), move || {
            let (server, is_worker) = &counted;
            server.end_thread(*is_worker);
        });
        start(move || {
            run(&server);
            drop(running);
        })
        .map(drop)
    }

    fn end_thread(&self, is_worker: bool) {
        self.work.change(|work| {
            work.threads -= 1;
            work.workers -= usize::from(is_worker);
        });
    }

    fn work(&self) {
        loop {
            self.work.lock().0.idle += 1;
            let mut work = self
                .work
                .sleep(|work| work.queue.is_empty() && !work.is_ending);
            work.0.idle -= 1;
            let job = work.0.queue.pop_front();
            let is_ending = work.0.is_ending;
            drop(work);
            match job {
                Some(job) if !is_ending => self.perform(job),
                _ => return,
            }
        }
    }

    fn perform(&self, job: Job) {
        let (id, body_bytes) = (job.id, job.body_bytes());
        let answered = self.answer(job);
        self.finish_call(id, body_bytes, answered);
    }

    /// Sends the answer to a call. Its room is free before the other side may use it again.
    pub(super) fn finish_call(
        &self,
        id: u64,
        body_bytes: usize,
        answered: Result<ServedAnswer<'_>>,
    ) {
        self.body_bytes.fetch_sub(body_bytes, AcqRel);
        self.calls.fetch_sub(1, AcqRel);
        let answered = answered.unwrap_or_else(|error| ServedAnswer::failed(&error));
        let ServedAnswer { answer, data, room } = answered;
        self.line.send_in_parts(
            &data,
            Message::AnswerPart { id },
            Message::Answer { id, answer },
        );
        drop(room);
    }

    /// Returns whether the other side has neither a call that is not answered, nor an upload, nor a lease.
    pub(super) fn is_at_rest(&self) -> bool {
        let calls = self.calls.load(Acquire);
        calls == 0 && self.uploads.locked().is_empty() && self.leases.is_empty()
    }

    /// Waits for room for an answer of so many bytes.
    pub(super) fn answer_room(&self, bytes: usize) -> ByteRoom<'_> {
        self.offer.answer_room().take(bytes)
    }

    /// Returns the objects that the other side has opened. Waits while they are being opened.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if it has not; why they could not be opened.
    pub(super) fn objects(&self) -> Result<Arc<dyn Objects>> {
        let waits = |state: &mut ServedObjects| state.is_opening;
        match &self.opened.sleep(waits).0.opened {
            Some(Ok(objects)) => Ok(objects.clone()),
            Some(Err(error)) => Err(error.clone().into_error()),
            None => {
                let message = "cannot do this: no location was opened";
                Err(Error::new(ErrorKind::Usage, message))
            }
        }
    }

    fn answer(&self, job: Job) -> Result<ServedAnswer<'_>> {
        let (call, body) = job.asked?;
        match call {
            AskedCall::Objects(call) => self.answer_objects(job.id, call, &body),
            AskedCall::Service(number) => self.ask(number, &body),
        }
    }

    /// Asks a service of the table.
    fn ask(&self, number: ServiceNumber, question: &[u8]) -> Result<ServedAnswer<'_>> {
        let service = self.offer.service_at(number)?;
        let room = self.answer_room(service.room_bytes(question));
        let data = service.answer(question, &self.peer)?;
        Ok(ServedAnswer {
            room: Some(room),
            ..ServedAnswer::bytes(data)
        })
    }

    fn answer_objects(&self, id: u64, call: ObjectCall, body: &[u8]) -> Result<ServedAnswer<'_>> {
        let answer = match call {
            ObjectCall::List { prefix } => return self.list(id, &prefix),
            ObjectCall::ReadAt { key, offset, len } => return self.read(id, &key, offset, len),
            ObjectCall::Get { key } => return self.get(&key),
            ObjectCall::Open { location } => self.open(&location)?,
            ObjectCall::Stat { key } => ObjectAnswer::Size(self.objects()?.stat(&key)?),
            ObjectCall::Put { key, condition } => {
                let put = self.objects()?.put(&key, body, &condition.into_put_if())?;
                ObjectAnswer::Put(match put {
                    Put::Done(version) => Some(version.as_str().to_owned()),
                    Put::Refused => None,
                })
            }
            ObjectCall::Delete => {
                let keys = decode_keys(body)?;
                self.objects()?.delete(&keys)?;
                // The other side takes the lease on a deleted intent for ended, and drops it by no call.
                self.leases.end_deleted(&keys);
                return done(Ok(()));
            }
            ObjectCall::AbortUploads { prefix } => {
                return done(self.objects()?.abort_uploads(&prefix));
            }
            ObjectCall::Settle { prefix } => return done(self.objects()?.settle(&prefix)),
            ObjectCall::Lease { key, take } => {
                let leased = self.objects()?.lease(&key, body, take.into_take())?;
                self.leases.keep(id, key, leased)?
            }
            ObjectCall::UpdateLease { lease } => return done(self.leases.update(lease, body)),
            ObjectCall::DropLease { lease } => {
                self.leases.let_go(lease);
                return done(Ok(()));
            }
            // The reader hands them to the thread of the upload, which keeps their order.
            ObjectCall::Amend { .. } | ObjectCall::Finish { .. } | ObjectCall::Abort { .. } => {
                let message = "cannot do this: it is of an upload";
                return Err(Error::new(ErrorKind::Bug, message));
            }
        };
        Ok(ServedAnswer::of_objects(&answer))
    }

    fn open(&self, location: &[u8]) -> Result<ObjectAnswer> {
        let service = self.offer.object_service();
        let opened = service.and_then(|service| service.open(location));
        let told = opened.as_ref().map(|objects| objects.abilities());
        let told = told.map_err(WireError::of);
        let is_second = self.opened.change(|state| {
            state.is_opening = false;
            let is_second = matches!(state.opened, Some(Ok(_)));
            // A location that could not be opened may be followed by another one.
            if !is_second {
                state.opened = Some(opened.map_err(|error| WireError::of(&error)));
            }
            is_second
        });
        if is_second {
            let message = "cannot open a second location over one connection";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let abilities = told.map_err(WireError::into_error)?;
        Ok(ObjectAnswer::Opened {
            has_locks: abilities.has_locks,
            amends: abilities.amends,
        })
    }

    /// Ends everything that the other side has begun. Leases are let go last, as long as an operation of their holder goes on they
    /// are held.
    pub(super) fn end(&self) {
        self.opened.change(|opened| opened.is_opening = false);
        self.work.change(|work| {
            work.is_ending = true;
            work.queue.clear();
        });
        self.uploads.locked().clear();
        drop(self.work.sleep(|work| work.threads > 0));
        self.leases.clear();
    }
}

/// Returns the answer to a call that has no result.
fn done(result: Result<()>) -> Result<ServedAnswer<'static>> {
    result.map(|()| ServedAnswer::bytes(Vec::new()))
}

impl UploadHost for Server {
    fn line(&self) -> &Line {
        &self.line
    }

    fn objects(&self) -> Result<Arc<dyn Objects>> {
        Self::objects(self)
    }

    fn give_credit(&self, data_bytes: usize) {
        self.whole.note_uploaded(data_bytes);
        if let Some(bytes) = self.upload_credit.stored(append_cost(data_bytes)) {
            self.line.send_or_end(&Message::Credit { bytes }, b"");
        }
    }

    fn finish_call(&self, id: u64, body_bytes: usize, done: Result<(CallAnswer, Vec<u8>)>) {
        let answered = done.map(|(answer, data)| ServedAnswer {
            answer,
            ..ServedAnswer::bytes(data)
        });
        Self::finish_call(self, id, body_bytes, answered);
    }
}
