//! Answers the calls of the other side.
//!
//! The reader of the connection hands over calls and never waits: worker threads do them, at most [`MAX_WORKERS`] at a time and in any
//! order, and each open upload has a thread of its own, which keeps its order. What waits to be done is bounded, since the other side may
//! send no more than it was given room for.

use super::{
    WireService,
    calls::{MAX_BODIES, MAX_CALLS, UPLOAD_WINDOW},
    credit::ReceiveCredit,
    frame::MAX_DATA,
    link::Link,
    message::{Call, CallAnswer, LeasedWord, Message, WireError, decode, encode, encode_listed},
    upload::{UploadStep, run_upload},
};
use crate::{
    error::{Error, ErrorKind, Result},
    queue::{Locked, Monitor, start},
    storage::{Lease, Leased, Objects, Put, Version, key::check_key},
};
use minicbor::bytes::ByteVec;
use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsString,
    mem,
    os::unix::ffi::OsStringExt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::AcqRel},
        mpsc,
    },
};

/// Calls that are done at the same time.
const MAX_WORKERS: usize = 24;

/// Uploads that are open at the same time.
const MAX_UPLOADS: usize = 256;

/// Leases that are held at the same time.
const MAX_LEASES: usize = 256;

/// Bytes that are read from the storage at once for one answer.
const READ_PIECE: u64 = 4 << 20;

/// Bytes of uploads that were stored before the other side is told so: each message is a system call on both sides.
pub(super) const CREDIT_STEP: u64 = MAX_DATA as u64;

/// The calls of the other side.
#[derive(Debug)]
pub(super) struct Server {
    service: Arc<dyn WireService>,
    opened: Monitor<ServedObjects>,
    work: Monitor<Work>,
    /// Calls that were taken and not answered.
    calls: AtomicUsize,
    /// Bytes of the data of those calls, and of calls that are not here as a whole.
    body_bytes: AtomicUsize,
    upload_credit: ReceiveCredit,
    uploads: Mutex<BTreeMap<u64, mpsc::Sender<UploadStep>>>,
    leases: Mutex<BTreeMap<u64, ServedLease>>,
}

/// The objects that the other side wants to use.
#[derive(Debug, Default)]
struct ServedObjects {
    /// They are being opened; calls that came later wait.
    is_opening: bool,
    opened: Option<Result<Arc<dyn Objects>, WireError>>,
}

#[derive(Debug)]
struct ServedLease {
    key: String,
    lease: Arc<Mutex<Box<dyn Lease>>>,
    was_reported: bool,
}

#[derive(Debug, Default)]
struct Work {
    queue: VecDeque<Job>,
    idle: usize,
    /// Workers and threads of uploads.
    threads: usize,
    workers: usize,
    is_ending: bool,
}

/// A call that is here as a whole.
#[derive(Debug)]
struct Job {
    id: u64,
    call: Call,
    body: Vec<u8>,
}

/// Calls whose data is on its way.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    bodies: BTreeMap<u64, Vec<u8>>,
}

fn violated(why: &str) -> Error {
    Error::corrupt("cannot go on with the other side").because(why.to_owned())
}

impl Server {
    pub(super) fn new(service: Arc<dyn WireService>) -> Self {
        Self {
            service,
            opened: Monitor::default(),
            work: Monitor::default(),
            calls: AtomicUsize::new(0),
            body_bytes: AtomicUsize::new(0),
            upload_credit: ReceiveCredit::new(UPLOAD_WINDOW, CREDIT_STEP),
            uploads: Mutex::default(),
            leases: Mutex::default(),
        }
    }

    /// Keeps data of a call that is not here as a whole.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the other side sends more than it may.
    pub(super) fn add_part(&self, arriving: &mut Arriving, id: u64, data: &[u8]) -> Result<()> {
        let before = self.body_bytes.fetch_add(data.len(), AcqRel);
        let body = arriving.bodies.entry(id).or_default();
        body.extend_from_slice(data);
        if before + data.len() > MAX_BODIES || arriving.bodies.len() > MAX_CALLS {
            return Err(violated("it sends more than it may"));
        }
        Ok(())
    }

    /// Takes a call whose last data is here.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if the other side makes more calls than it may or uses a number twice; no thread could be started.
    pub(super) fn accept(
        &self,
        link: &Arc<Link>,
        arriving: &mut Arriving,
        id: u64,
        call: Call,
        data: &[u8],
    ) -> Result<()> {
        self.add_part(arriving, id, data)?;
        let body = arriving.bodies.remove(&id).unwrap_or_default();
        if self.calls.fetch_add(1, AcqRel) >= MAX_CALLS {
            return Err(violated("it makes more calls than it may"));
        }
        match call {
            Call::Amend { upload, offset } => {
                self.pass(upload, false, UploadStep::Amend { id, offset, body })
            }
            Call::Finish { upload } => self.pass(upload, true, UploadStep::Finish { id }),
            Call::Abort { upload } => self.pass(upload, true, UploadStep::Abort { id }),
            call => {
                if matches!(call, Call::Open { .. }) {
                    self.opened.change(|opened| opened.is_opening = true);
                }
                self.queue(link, Job { id, call, body })
            }
        }
    }

    /// Takes data of an upload.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] if there is no such upload, or more data than there is room for.
    pub(super) fn append(&self, upload: u64, data: Vec<u8>) -> Result<()> {
        self.upload_credit.arrive(data.len() as u64)?;
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
        self.start_thread(link, false, move |link| run_upload(link, id, &key, steps))
    }

    /// Bytes of an upload do not take room any more.
    pub(super) fn give_credit(&self, link: &Link, bytes: u64) {
        if let Some(bytes) = self.upload_credit.stored(bytes) {
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
        let (id, body_bytes) = (job.id, job.body.len());
        let (answer, data) = self
            .answer(link, job)
            .unwrap_or_else(|error| (CallAnswer::Failed(WireError::of(&error)), Vec::new()));
        self.finish_call(link, id, body_bytes, answer, &data);
    }

    /// Sends the answer to a call. Its room is free before the other side may use it again.
    pub(super) fn finish_call(
        &self,
        link: &Link,
        id: u64,
        body_bytes: usize,
        answer: CallAnswer,
        data: &[u8],
    ) {
        self.body_bytes.fetch_sub(body_bytes, AcqRel);
        self.calls.fetch_sub(1, AcqRel);
        link.send_in_parts(
            data,
            Message::AnswerPart { id },
            Message::Answer { id, answer },
        );
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

    fn answer(&self, link: &Arc<Link>, job: Job) -> Result<(CallAnswer, Vec<u8>)> {
        let Job { id, call, body } = job;
        let done = |()| (CallAnswer::Bytes, Vec::new());
        match call {
            Call::Open { location } => self.open(&location),
            Call::Run => self.run(link, &body),
            Call::Offer => {
                let offer = self.service.offer(link.peer_side())?;
                Ok((CallAnswer::Offered(offer), Vec::new()))
            }
            Call::Ask { topic } => Ok((CallAnswer::Bytes, self.service.ask(topic, &body)?)),
            Call::Output { is_error } => self.service.output(is_error, &body).map(done),
            Call::List { prefix } => {
                let listed = self.objects()?.list(&prefix)?;
                Ok((CallAnswer::Bytes, encode_listed(&listed)))
            }
            Call::ReadAt { key, offset, len } => self.read(link, id, &key, offset, len),
            Call::Get { key } => {
                let got = self.objects()?.get(&key)?;
                let (bytes, version) = got.unzip();
                let version = version.map(|version: Version| version.as_str().to_owned());
                Ok((CallAnswer::Got(version), bytes.unwrap_or_default()))
            }
            Call::Stat { key } => Ok((CallAnswer::Size(self.objects()?.stat(&key)?), Vec::new())),
            Call::Put { key, condition } => {
                let put = self.objects()?.put(&key, &body, &condition.into_put_if())?;
                let version = match put {
                    Put::Done(version) => Some(version.as_str().to_owned()),
                    Put::Refused => None,
                };
                Ok((CallAnswer::Put(version), Vec::new()))
            }
            Call::Delete => {
                let keys: Vec<String> = decode(&body)?;
                self.objects()?.delete(&keys)?;
                self.end_deleted_leases(&keys);
                Ok(done(()))
            }
            Call::AbortUploads { prefix } => self.objects()?.abort_uploads(&prefix).map(done),
            Call::Settle { prefix } => self.objects()?.settle(&prefix).map(done),
            Call::Lease { key, take } => {
                let leased = self.objects()?.lease(&key, &body, take.into_take())?;
                self.keep_lease(id, key, leased)
            }
            Call::UpdateLease { lease } => {
                let held = self.lease(lease)?;
                held.locked().update(&body).map(done)
            }
            Call::DropLease { lease } => {
                let held = self.leases.locked().remove(&lease);
                drop(held);
                Ok(done(()))
            }
            Call::Amend { .. } | Call::Finish { .. } | Call::Abort { .. } => Err(Error::new(
                ErrorKind::Bug,
                "cannot do this: it is of an upload",
            )),
        }
    }

    fn open(&self, location: &[u8]) -> Result<(CallAnswer, Vec<u8>)> {
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
        Ok((answer, Vec::new()))
    }

    fn run(&self, link: &Arc<Link>, body: &[u8]) -> Result<(CallAnswer, Vec<u8>)> {
        let arguments: Vec<ByteVec> = decode(body)?;
        let arguments = arguments
            .into_iter()
            .map(|argument| OsString::from_vec(argument.into()))
            .collect();
        let code = self.service.run(arguments, link.peer_side())?;
        Ok((CallAnswer::Exited(code), Vec::new()))
    }

    /// Sends all but the last piece of a range; the answer takes that.
    fn read(
        &self,
        link: &Link,
        id: u64,
        key: &str,
        mut offset: u64,
        mut len: u64,
    ) -> Result<(CallAnswer, Vec<u8>)> {
        let objects = self.objects()?;
        if len > READ_PIECE {
            check_range(&*objects, key, offset, len)?;
        }
        let mut piece = Vec::new();
        loop {
            let piece_bytes = len.min(READ_PIECE);
            objects.read_at(key, offset, piece_bytes as usize, &mut piece)?;
            if piece_bytes == len {
                return Ok((CallAnswer::Bytes, piece));
            }
            for part in piece.chunks(MAX_DATA) {
                link.send_or_end(&Message::AnswerPart { id }, part);
            }
            if let Some(error) = link.ended() {
                return Err(error);
            }
            offset += piece_bytes;
            len -= piece_bytes;
        }
    }

    fn keep_lease(&self, id: u64, key: String, leased: Leased) -> Result<(CallAnswer, Vec<u8>)> {
        let word = match leased {
            Leased::Held => LeasedWord::Held,
            Leased::Absent => LeasedWord::Absent,
            Leased::Unknown => LeasedWord::Unknown,
            Leased::Ours(lease) => {
                let mut leases = self.leases.locked();
                if leases.len() >= MAX_LEASES {
                    let what = format!("could not take a lease: {MAX_LEASES} are held");
                    return Err(Error::new(ErrorKind::System, what));
                }
                let lease = Arc::new(Mutex::new(lease));
                leases.insert(
                    id,
                    ServedLease {
                        key,
                        lease,
                        was_reported: false,
                    },
                );
                LeasedWord::Ours
            }
        };
        Ok((CallAnswer::Leased(word), Vec::new()))
    }

    fn lease(&self, id: u64) -> Result<Arc<Mutex<Box<dyn Lease>>>> {
        let gone = || Error::new(ErrorKind::Gone, "cannot use a lease that was let go");
        let leases = self.leases.locked();
        let held = leases.get(&id).ok_or_else(gone)?;
        Ok(held.lease.clone())
    }

    /// Lets go of leases whose intents the other side has deleted.
    fn end_deleted_leases(&self, keys: &[String]) {
        let mut leases = self.leases.locked();
        let all = mem::take(&mut *leases).into_iter();
        let (ended, left) = all.partition(|(_, held)| keys.contains(&held.key));
        *leases = left;
        drop(leases);
        drop::<BTreeMap<u64, ServedLease>>(ended); // this may take a request
    }

    /// Tells the other side which leases it does not hold any more, before it may let go of them.
    pub(super) fn report_lost_leases(&self, link: &Link) {
        for (id, held) in self.leases.locked().iter_mut() {
            let is_lost = held.lease.try_lock().is_ok_and(|lease| !lease.is_ours());
            if is_lost && !held.was_reported {
                held.was_reported = true;
                link.send_or_end(&Message::LeaseLost { lease: *id }, b"");
            }
        }
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
        self.leases.locked().clear();
    }
}

/// Refuses a range that is longer than its object: damage may claim any length.
fn check_range(objects: &dyn Objects, key: &str, offset: u64, len: u64) -> Result<()> {
    check_key(key)?;
    let Some(bytes) = objects.stat(key)? else {
        return Ok(()); // the read says so
    };
    if offset.checked_add(len).is_some_and(|end| end <= bytes) {
        return Ok(());
    }
    let name = objects.describe(key);
    let what = format!("could not read {len} bytes at byte {offset} of {name}");
    Err(Error::corrupt(what).because("it ends too early"))
}

/// The keys of a delete, as they are sent.
pub(super) fn encode_keys(keys: &[String]) -> Vec<u8> {
    encode(&keys)
}

/// A thread that works for the other side.
struct ServingThread {
    link: Arc<Link>,
    is_worker: bool,
}

impl Drop for ServingThread {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.link.end(&Error::new(
                ErrorKind::Bug,
                "a thread of the storage has failed",
            ));
        }
        self.link.server.work.change(|work| {
            work.threads -= 1;
            work.workers -= usize::from(self.is_worker);
        });
    }
}
