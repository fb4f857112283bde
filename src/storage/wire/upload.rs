//! An upload of the other side, in a thread of its own.

use super::{
    link::Link,
    message::{CallAnswer, Message, WireError, encode},
};
use crate::{
    error::Result,
    storage::{StoredObject, Upload},
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
    let created = link
        .server
        .objects()
        .and_then(|objects| objects.create(key));
    let upload = match created {
        Ok(upload) => upload,
        Err(error) => {
            link.server.forget_upload(id);
            return finish(link, id, 0, Err(error));
        }
    };
    finish(link, id, 0, Ok((CallAnswer::Bytes, Vec::new())));
    ServedUpload {
        link,
        id,
        upload,
        error: None,
    }
    .run(steps);
}

fn finish(link: &Link, id: u64, body_bytes: usize, done: Result<(CallAnswer, Vec<u8>)>) {
    let (answer, data) =
        done.unwrap_or_else(|error| (CallAnswer::Failed(WireError::of(&error)), Vec::new()));
    link.server.finish_call(link, id, body_bytes, answer, &data);
}

struct ServedUpload<'l> {
    link: &'l Arc<Link>,
    id: u64,
    upload: Box<dyn Upload>,
    /// The first error; what follows it is dropped.
    error: Option<WireError>,
}

impl ServedUpload<'_> {
    fn run(mut self, steps: Receiver<UploadStep>) {
        for step in steps {
            match step {
                UploadStep::Append(data) => self.append(&data),
                UploadStep::Amend { id, offset, body } => {
                    let amended = self
                        .check()
                        .and_then(|()| self.upload.amend(offset, &body))
                        .map(|()| (CallAnswer::Bytes, Vec::new()));
                    finish(self.link, id, body.len(), amended);
                }
                UploadStep::Finish { id } => {
                    let link = self.link;
                    return finish(link, id, 0, self.finish());
                }
                UploadStep::Abort { id } => {
                    self.upload.abort();
                    return finish(self.link, id, 0, Ok((CallAnswer::Bytes, Vec::new())));
                }
            }
        }
    }

    fn check(&self) -> Result<()> {
        match &self.error {
            Some(error) => Err(error.clone().into_error()),
            None => Ok(()),
        }
    }

    fn append(&mut self, data: &[u8]) {
        if self.error.is_none()
            && let Err(error) = self.upload.append(data)
        {
            let error = WireError::of(&error);
            self.error = Some(error.clone());
            let upload = self.id;
            self.link
                .send_or_end(&Message::UploadFailed { upload, error }, b"");
        }
        self.link.server.give_credit(self.link, data.len() as u64);
    }

    fn finish(self) -> Result<(CallAnswer, Vec<u8>)> {
        self.check()?;
        // The connection ended meanwhile: the other side must not find later what it was told has failed.
        if let Some(error) = self.link.ended() {
            return Err(error);
        }
        let StoredObject { bytes, parts } = self.upload.finish()?;
        Ok((CallAnswer::Finished(bytes), encode(&parts)))
    }
}
