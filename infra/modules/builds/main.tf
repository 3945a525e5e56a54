# Cloud Build makes the images and the wheel (cloudbuild.yaml), as an account that does nothing else: its default one may edit the project.

variable "name" {
  type = string
}

variable "region" {
  type = string
}

variable "project" {
  type = string
}

variable "cluster_project" {
  type = string
}

variable "images" {
  description = "The repository of our images."
  type        = string
}

variable "wheels" {
  description = "The repository of the wheel."
  type        = string
}

variable "operators" {
  type = list(string)
}

resource "google_service_account" "builder" {
  project      = var.project
  account_id   = "${var.name}-builder"
  display_name = "Builds of ${var.name}"
}

resource "google_project_iam_member" "logs" {
  project = var.project
  role    = "roles/logging.logWriter"
  member  = google_service_account.builder.member
}

# `gcloud builds submit` puts the clone into a bucket of this name.
resource "google_project_iam_member" "source" {
  project = var.project
  role    = "roles/storage.objectViewer"
  member  = google_service_account.builder.member

  condition {
    title      = "source"
    expression = "resource.name == \"projects/_/buckets/${var.project}_cloudbuild\" || resource.name.startsWith(\"projects/_/buckets/${var.project}_cloudbuild/\")"
  }
}

resource "google_artifact_registry_repository_iam_member" "images" {
  project    = var.cluster_project
  location   = var.region
  repository = var.images
  role       = "roles/artifactregistry.writer"
  member     = google_service_account.builder.member
}

resource "google_artifact_registry_repository_iam_member" "wheels" {
  project    = var.project
  location   = var.region
  repository = var.wheels
  role       = "roles/artifactregistry.writer"
  member     = google_service_account.builder.member
}

resource "google_service_account_iam_member" "operators" {
  for_each           = toset(var.operators)
  service_account_id = google_service_account.builder.name
  role               = "roles/iam.serviceAccountUser"
  member             = each.key
}

output "account" {
  value      = google_service_account.builder.name
  depends_on = [google_project_iam_member.logs, google_project_iam_member.source]
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    service_account_builder                        = google_service_account.builder
    project_iam_member_logs                        = google_project_iam_member.logs
    project_iam_member_source                      = google_project_iam_member.source
    artifact_registry_repository_iam_member_images = google_artifact_registry_repository_iam_member.images
    artifact_registry_repository_iam_member_wheels = google_artifact_registry_repository_iam_member.wheels
    service_account_iam_member_operators           = google_service_account_iam_member.operators
  }
}
