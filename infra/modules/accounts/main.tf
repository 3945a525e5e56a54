# Nodes and Airflow get accounts of their own: the default ones may edit the whole project.

variable "name" {
  type = string
}

variable "project" {
  type = string
}

variable "cluster_project" {
  type = string
}

resource "google_service_account" "nodes" {
  project      = var.cluster_project
  account_id   = "${var.name}-node"
  display_name = "Nodes of ${var.name}"
}

resource "google_service_account" "airflow" {
  project      = var.project
  account_id   = "${var.name}-airflow"
  display_name = "Airflow of ${var.name}"
}

# AlloyDB knows users by the address of an account, which a Kubernetes account does not have.
resource "google_service_account" "streams" {
  project      = var.cluster_project
  account_id   = "${var.name}-stream"
  display_name = "Streams of ${var.name} in their database"
}

output "nodes" {
  value = google_service_account.nodes
}

output "airflow" {
  value = google_service_account.airflow
}

output "streams" {
  value = google_service_account.streams
}

output "made" {
  description = "All resources, for the tests of the root."
  value = {
    service_account_nodes   = google_service_account.nodes
    service_account_airflow = google_service_account.airflow
    service_account_streams = google_service_account.streams
  }
}
