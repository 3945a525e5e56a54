# The same list as step 2 of k8s/README.md (a test compares them), and what only Terraform calls.

variable "project" {
  type = string
}

variable "cluster_project" {
  type = string
}

variable "extra" {
  type = list(string)
}

locals {
  services = concat([
    "alloydb.googleapis.com",
    "artifactregistry.googleapis.com",
    "bigquery.googleapis.com",
    "cloudbuild.googleapis.com",
    "cloudquotas.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "composer.googleapis.com",
    "compute.googleapis.com",
    "container.googleapis.com",
    "containerfilesystem.googleapis.com",
    "iam.googleapis.com",
    "iamcredentials.googleapis.com",
    "logging.googleapis.com",
    "monitoring.googleapis.com",
    "pubsub.googleapis.com",
    "servicenetworking.googleapis.com",
    "storage.googleapis.com",
  ], var.extra)
}

resource "google_project_service" "enabled" {
  for_each = { for pair in setproduct(toset([var.project, var.cluster_project]), local.services) : "${pair[0]}/${pair[1]}" => pair }

  project = each.value[0]
  service = each.value[1]
  # Someone else in the project may use it too.
  disable_on_destroy = false
}

data "google_project" "airflow" {
  project_id = var.project
  depends_on = [google_project_service.enabled]
}

data "google_project" "cluster" {
  project_id = var.cluster_project
  depends_on = [google_project_service.enabled]
}

# Whoever takes a project's id from here waits until its APIs are enabled.
output "project" {
  value      = var.project
  depends_on = [google_project_service.enabled]
}

output "cluster_project" {
  value      = var.cluster_project
  depends_on = [google_project_service.enabled]
}

output "number" {
  value = data.google_project.airflow.number
}

output "cluster_number" {
  value = data.google_project.cluster.number
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    project_service_enabled = google_project_service.enabled
    project_airflow         = data.google_project.airflow
    project_cluster         = data.google_project.cluster
  }
}
