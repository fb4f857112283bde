//! An upload of the other side, in a thread of its own.

use super::line::Line;
use crate::{Objects, StoredObject, Upload};
use fullbore_format::error::{Error, Result};
use fullbore_wire::{
    message::{CallAnswer, Message, encode},
    object_call::ObjectAnswer,
    wire_error::WireError,
};
use std::sync::{Arc, mpsc::Receiver};

/// The side that serves an upload.
pub(super) trait UploadHost {
    /// Returns the line to the side that uploads.
    fn line(&self) -> &Line;

    /// Returns the objects that were opened. Waits while they are being opened.
    ///
    /// # Errors
    /// Why they could not be opened.
    fn objects(&self) -> Result<Arc<dyn Objects>>;

    /// Gives back the room of data that was stored.
    fn give_credit(&self, data_bytes: usize);

    /// Sends the answer to a call that had so many bytes of data.
    fn finish_call(&self, id: u64, body_bytes: usize, done: Result<(CallAnswer, Vec<u8>)>);
}

/// What the other side wants of an upload, in its order.
#[derive(Debug)]
pub(super) enum UploadStep {
    Append(Vec<u8>),
    Amend { id: u64, offset: u64, body: Vec<u8> },
    Finish { id: u64 },
    Abort { id: u64 },
}

/// Creates the object, and does what is asked until the last step. Without one, the connection has ended and the upload is aborted.
pub(super) fn run_upload(host: &dyn UploadHost, id: u64, key: &str, steps: Receiver<UploadStep>) {
    let created = host.objects().and_then(|objects| objects.create(key));
    let upload = created.map_err(|error| fail(host.line(), id, &error));
    ServedUpload { host, id, upload }.run(steps);
}

/// Tells the other side that an upload has failed.
fn fail(line: &Line, upload: u64, error: &Error) -> WireError {
    let error = WireError::of(error);
    let failed = Message::UploadFailed {
        upload,
        error: error.clone(),
    };
    line.send_or_end(&failed, b"");
    error
}

struct ServedUpload<'h> {
    host: &'h dyn UploadHost,
    id: u64,
    /// Or the first error; what follows it is dropped.
    upload: Result<Box<dyn Upload>, WireError>,
}

impl ServedUpload<'_> {
    fn run(mut self, steps: Receiver<UploadStep>) {
        for step in steps {
            match step {
                UploadStep::Append(data) => self.append(&data),
                UploadStep::Amend { id, offset, body } => {
                    let amended = self.amend(offset, &body);
                    let amended = amended.map(|()| (CallAnswer::bytes(), Vec::new()));
                    self.host.finish_call(id, body.len(), amended);
                }
                UploadStep::Finish { id } => {
                    let host = self.host;
                    return host.finish_call(id, 0, self.finish());
                }
                UploadStep::Abort { id } => {
                    if let Ok(upload) = self.upload {
                        upload.abort();
                    }
                    let aborted = Ok((CallAnswer::bytes(), Vec::new()));
                    return self.host.finish_call(id, 0, aborted);
                }
            }
        }
    }

    fn append(&mut self, data: &[u8]) {
        if let Ok(upload) = &mut self.upload
            && let Err(error) = upload.append(data)
        {
            self.upload = Err(fail(self.host.line(), self.id, &error));
        }
        self.host.give_credit(data.len());
    }

    fn amend(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        match &mut self.upload {
            Ok(upload) => upload.amend(offset, bytes),
            Err(error) => Err(error.clone().into_error()),
        }
    }

    fn finish(self) -> Result<(CallAnswer, Vec<u8>)> {
        let upload = self.upload.map_err(WireError::into_error)?;
        // The connection ended meanwhile: the other side must not find later what it was told has failed.
        if let Some(error) = self.host.line().ended() {
            return Err(error);
        }
        let StoredObject { bytes, parts } = upload.finish()?;
        let finished = encode(&ObjectAnswer::Finished(bytes));
        Ok((CallAnswer::Done(finished.into()), encode(&parts)))
    }
}
