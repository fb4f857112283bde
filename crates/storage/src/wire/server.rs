//! Answers the calls of the other side.
//!
//! The reader of the connection hands over calls and never waits: worker threads do them, at most [`MAX_WORKERS`] at a time and in any
//! order, and each open upload has a thread of its own, which keeps its order. What waits to be done is bounded, since the other side may
//! send no more than it was given room for.

use super::{
    WireService,
    bodies::{Arriving, BodyLimit, Job, decode_keys},
    calls::{MAX_CALLS, UPLOAD_WINDOW},
    credit::{ReceiveCredit, append_cost},
    documents::WholeObjects,
    leases::ServedLeases,
    link::Link,
    upload::{UploadStep, run_upload},
    workers::{ServingThread, Work},
};
use crate::{Objects, Put};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::{ByteBudget, ByteRoom, Locked, Monitor, start};
use fullbore_wire::{
    frame::MAX_DATA,
    message::{AskTopic, Call, CallAnswer, Message, decode},
    wire_error::WireError,
};
use minicbor::bytes::ByteVec;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    num::NonZeroU64,
    os::unix::ffi::OsStringExt,
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

/// Values in the arguments of a command at most.
const MAX_ARGUMENTS: usize = 1 << 16;

/// Bytes of uploads that were stored before the other side is told so: each message is a system call on both sides.
pub(super) const CREDIT_STEP: u64 = MAX_DATA as u64;

/// The calls of the other side.
#[derive(Debug)]
pub(super) struct Server {
    service: Arc<dyn WireService>,
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
    /// Room for answers.
    pub(super) answers: Arc<ByteBudget>,
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
    pub(super) fn of(answer: CallAnswer) -> Self {
        Self {
            answer,
            data: Vec::new(),
            room: None,
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

fn violated(why: &str) -> Error {
    Error::corrupt("cannot go on with the other side").because(why.to_owned())
}

impl Server {
    pub(super) fn new(service: Arc<dyn WireService>) -> Self {
        Self {
            answers: service.answer_room(),
            service,
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
        &self,
        link: &Arc<Link>,
        arriving: &mut Arriving,
        id: u64,
        data: &[u8],
    ) -> Result<()> {
        match arriving.add_part(id, data)? {
            Some(job) => self.accept_whole(link, job),
            None => Ok(()),
        }
    }

    /// Takes a call with the beginning of its data.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the other side makes more calls than it may, sends more than it may or uses a number twice; no thread
    /// could be started.
    pub(super) fn accept(
        &self,
        link: &Arc<Link>,
        arriving: &mut Arriving,
        call: (u64, Call, Option<NonZeroU64>),
        data: &[u8],
    ) -> Result<()> {
        let limit = BodyLimit {
            service: &*self.service,
            object_bytes: self.whole.put_limit(),
        };
        match arriving.begin(limit, &self.body_bytes, call, data)? {
            Some(job) => self.accept_whole(link, job),
            None => Ok(()),
        }
    }

    fn accept_whole(&self, link: &Arc<Link>, job: Job) -> Result<()> {
        if self.calls.fetch_add(1, AcqRel) >= MAX_CALLS {
            return Err(violated("it makes more calls than it may"));
        }
        let id = job.id;
        match (&job.call, job.body) {
            (Call::Amend { upload, offset }, Ok(body)) => {
                let offset = *offset;
                self.pass(*upload, false, UploadStep::Amend { id, offset, body })
            }
            (Call::Finish { upload }, _) => self.pass(*upload, true, UploadStep::Finish { id }),
            (Call::Abort { upload }, _) => self.pass(*upload, true, UploadStep::Abort { id }),
            (call, body) => {
                if matches!(call, Call::Open { .. }) {
                    self.opened.change(|opened| opened.is_opening = true);
                }
                self.queue(link, Job { body, ..job })
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
    pub(super) fn begin_upload(&self, link: &Arc<Link>, id: u64, key: String) -> Result<()> {
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
        self.start_thread(link, false, move |link| run_upload(link, id, &key, steps))
    }

    /// Data of an upload does not take room any more.
    pub(super) fn give_credit(&self, link: &Link, data_bytes: usize) {
        self.whole.note_uploaded(data_bytes);
        if let Some(bytes) = self.upload_credit.stored(append_cost(data_bytes)) {
            link.send_or_end(&Message::Credit { bytes }, b"");
        }
    }

    fn queue(&self, link: &Arc<Link>, job: Job) -> Result<()> {
        let mut work = self.work.lock();
        work.0.queue.push_back(job);
        let is_short = work.0.queue.len() > work.0.idle && work.0.workers < MAX_WORKERS;
        if is_short {
            work.0.workers += 1;
        }
        // Each idle worker can do each call.
        self.work.wake(work, false);
        if is_short {
            self.start_thread(link, true, |link| link.server.work(link))?;
        }
        Ok(())
    }

    fn start_thread(
        &self,
        link: &Arc<Link>,
        is_worker: bool,
        run: impl FnOnce(&Arc<Link>) + Send + 'static,
    ) -> Result<()> {
        self.work.lock().0.threads += 1;
        let running = ServingThread {
            link: link.clone(),
            is_worker,
        };
        start(move || {
            run(&running.link);
            drop(running);
        })
        .map(drop)
    }

    fn work(&self, link: &Arc<Link>) {
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
                Some(job) if !is_ending => self.perform(link, job),
                _ => return,
            }
        }
    }

    fn perform(&self, link: &Arc<Link>, job: Job) {
        let (id, body_bytes) = (job.id, job.body_bytes());
        let answered = self.answer(link, job);
        self.finish_call(link, id, body_bytes, answered);
    }

    /// Sends the answer to a call. Its room is free before the other side may use it again.
    pub(super) fn finish_call(
        &self,
        link: &Link,
        id: u64,
        body_bytes: usize,
        answered: Result<ServedAnswer<'_>>,
    ) {
        self.body_bytes.fetch_sub(body_bytes, AcqRel);
        self.calls.fetch_sub(1, AcqRel);
        let failed = |error| ServedAnswer::of(CallAnswer::Failed(WireError::of(&error)));
        let ServedAnswer { answer, data, room } = answered.unwrap_or_else(failed);
        link.send_in_parts(
            &data,
            Message::AnswerPart { id },
            Message::Answer { id, answer },
        );
        drop(room);
    }

    /// Has the other side neither asked anything that is not answered, nor an upload or a lease?
    pub(super) fn is_at_rest(&self) -> bool {
        let calls = self.calls.load(Acquire);
        calls == 0 && self.uploads.locked().is_empty() && self.leases.is_empty()
    }

    /// The objects that the other side has opened. Waits while they are being opened.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if it has not; why they could not be opened.
    pub(super) fn objects(&self) -> Result<Arc<dyn Objects>> {
        let waits = |state: &mut ServedObjects| state.is_opening;
        match &self.opened.sleep(waits).0.opened {
            Some(Ok(objects)) => Ok(objects.clone()),
            Some(Err(error)) => Err(error.clone().into_error()),
            None => {
                let what = "cannot do this: no location was opened";
                Err(Error::new(ErrorKind::Usage, what))
            }
        }
    }

    fn answer(&self, link: &Arc<Link>, job: Job) -> Result<ServedAnswer<'_>> {
        let Job { id, call, body } = job;
        let body = body?;
        let answer = match call {
            Call::Ask { topic } => return self.ask(topic, &body),
            Call::List { prefix } => return self.list(link, id, &prefix),
            Call::ReadAt { key, offset, len } => return self.read(link, id, &key, offset, len),
            Call::Get { key } => return self.get(&key),
            Call::Open { location } => self.open(&location)?,
            Call::Run => self.run(link, &body)?,
            Call::Offer => CallAnswer::Offered(self.service.offer(link.peer_side())?),
            Call::Output { is_error } => done(self.service.output(is_error, &body)?),
            Call::Stat { key } => CallAnswer::Size(self.objects()?.stat(&key)?),
            Call::Put { key, condition } => {
                let put = self.objects()?.put(&key, &body, &condition.into_put_if())?;
                CallAnswer::Put(match put {
                    Put::Done(version) => Some(version.as_str().to_owned()),
                    Put::Refused => None,
                })
            }
            Call::Delete => {
                let keys = decode_keys(&body)?;
                self.objects()?.delete(&keys)?;
                self.leases.end_deleted(&keys);
                CallAnswer::Bytes
            }
            Call::AbortUploads { prefix } => done(self.objects()?.abort_uploads(&prefix)?),
            Call::Settle { prefix } => done(self.objects()?.settle(&prefix)?),
            Call::Lease { key, take } => {
                let leased = self.objects()?.lease(&key, &body, take.into_take())?;
                self.leases.keep(id, key, leased)?
            }
            Call::UpdateLease { lease } => done(self.leases.update(lease, &body)?),
            Call::DropLease { lease } => {
                self.leases.let_go(lease);
                CallAnswer::Bytes
            }
            Call::Amend { .. } | Call::Finish { .. } | Call::Abort { .. } => {
                let what = "cannot do this: it is of an upload";
                return Err(Error::new(ErrorKind::Bug, what));
            }
        };
        Ok(ServedAnswer::of(answer))
    }

    fn ask(&self, topic: AskTopic, question: &[u8]) -> Result<ServedAnswer<'_>> {
        let room = self
            .answers
            .take(self.service.question_room(topic, question));
        Ok(ServedAnswer {
            data: self.service.ask(topic, question)?,
            room: Some(room),
            ..ServedAnswer::of(CallAnswer::Bytes)
        })
    }

    fn open(&self, location: &[u8]) -> Result<CallAnswer> {
        let opened = self.service.open(location);
        let abilities = opened.as_ref().map(|objects| objects.abilities());
        let answer = match abilities {
            Ok(abilities) => CallAnswer::Opened {
                has_locks: abilities.has_locks,
                amends: abilities.amends,
            },
            Err(error) => CallAnswer::Failed(WireError::of(error)),
        };
        let is_second = self.opened.change(|state| {
            state.is_opening = false;
            let is_second = matches!(state.opened, Some(Ok(_)));
            if !is_second {
                state.opened = Some(opened.map_err(|error| WireError::of(&error)));
            }
            is_second
        });
        if is_second {
            let what = "cannot open a second location over one connection";
            return Err(Error::new(ErrorKind::Usage, what));
        }
        Ok(answer)
    }

    fn run(&self, link: &Arc<Link>, body: &[u8]) -> Result<CallAnswer> {
        let arguments: Vec<ByteVec> = decode(body, MAX_ARGUMENTS)?;
        let arguments = arguments
            .into_iter()
            .map(|argument| OsString::from_vec(argument.into()))
            .collect();
        let code = self.service.run(arguments, link.peer_side())?;
        Ok(CallAnswer::Exited(code))
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

/// The answer to a call that has been done.
fn done((): ()) -> CallAnswer {
    CallAnswer::Bytes
}
