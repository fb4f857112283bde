//! An upload of the other side, in a thread of its own.

use super::{link::Link, server::ServedAnswer};
use crate::{StoredObject, Upload};
use fullbore_format::error::{Error, Result};
use fullbore_wire::{
    message::{CallAnswer, Message, encode},
    wire_error::WireError,
};
use std::sync::{Arc, mpsc::Receiver};

/// What the other side wants of an upload, in its order.
#[derive(Debug)]
pub(super) enum UploadStep {
    Append(Vec<u8>),
    Amend { id: u64, offset: u64, body: Vec<u8> },
    Finish { id: u64 },
    Abort { id: u64 },
}

/// Creates the object, and does what is asked until the last step. Without one, the connection has ended and the upload is aborted.
pub(super) fn run_upload(link: &Arc<Link>, id: u64, key: &str, steps: Receiver<UploadStep>) {
    let objects = link.server.objects();
    let created = objects.and_then(|objects| objects.create(key));
    let upload = created.map_err(|error| fail(link, id, &error));
    ServedUpload { link, id, upload }.run(steps);
}

/// Tells the other side that an upload has failed.
fn fail(link: &Link, upload: u64, error: &Error) -> WireError {
    let error = WireError::of(error);
    let failed = Message::UploadFailed {
        upload,
        error: error.clone(),
    };
    link.send_or_end(&failed, b"");
    error
}

fn finish(link: &Link, id: u64, body_bytes: usize, done: Result<(CallAnswer, Vec<u8>)>) {
    let answered = done.map(|(answer, data)| ServedAnswer {
        answer,
        data,
        room: None,
    });
    link.server.finish_call(link, id, body_bytes, answered);
}

struct ServedUpload<'l> {
    link: &'l Arc<Link>,
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
                    let amended = amended.map(|()| (CallAnswer::Bytes, Vec::new()));
                    finish(self.link, id, body.len(), amended);
                }
                UploadStep::Finish { id } => {
                    let link = self.link;
                    return finish(link, id, 0, self.finish());
                }
                UploadStep::Abort { id } => {
                    if let Ok(upload) = self.upload {
                        upload.abort();
                    }
                    return finish(self.link, id, 0, Ok((CallAnswer::Bytes, Vec::new())));
                }
            }
        }
    }

    fn append(&mut self, data: &[u8]) {
        if let Ok(upload) = &mut self.upload
            && let Err(error) = upload.append(data)
        {
            self.upload = Err(fail(self.link, self.id, &error));
        }
        self.link.server.give_credit(self.link, data.len());
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
        if let Some(error) = self.link.ended() {
            return Err(error);
        }
        let StoredObject { bytes, parts } = upload.finish()?;
        Ok((CallAnswer::Finished(bytes), encode(&parts)))
    }
}
