//! Transport: one line per RPC. Nothing is decided here.

use berth_rpc::broker::{
    self as api, provider_service_server::ProviderService, sandbox_service_server::SandboxService,
};
use tonic::{Request, Response, Status};

use crate::{
    actions::Context,
    operations::{collect, exec, list_providers, read_file, write_file},
};

/// Both of the broker's services.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) context: Context,
    pub(crate) running: exec::Running,
}

#[tonic::async_trait]
impl SandboxService for Service {
    type ExecStream = exec::ExecStream;

    async fn exec(&self, request: Request<api::ExecRequest>) -> Result<Response<Self::ExecStream>, Status> {
        Ok(Response::new(exec::exec(&self.context, &self.running, request.into_inner()).await?))
    }

    async fn read_file(
        &self,
        request: Request<api::ReadFileRequest>,
    ) -> Result<Response<api::ReadFileResponse>, Status> {
        Ok(Response::new(read_file::read_file(&self.context, request.into_inner()).await?))
    }

    async fn write_file(
        &self,
        request: Request<api::WriteFileRequest>,
    ) -> Result<Response<api::WriteFileResponse>, Status> {
        Ok(Response::new(write_file::write_file(&self.context, request.into_inner()).await?))
    }

    async fn collect(&self, request: Request<api::CollectRequest>) -> Result<Response<api::CollectResponse>, Status> {
        Ok(Response::new(collect::collect(&self.context, request.into_inner()).await?))
    }
}

#[tonic::async_trait]
impl ProviderService for Service {
    async fn list_providers(
        &self,
        request: Request<api::ListProvidersRequest>,
    ) -> Result<Response<api::ListProvidersResponse>, Status> {
        Ok(Response::new(list_providers::list_providers(&self.context, request.metadata()).await?))
    }
}
