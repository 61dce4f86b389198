{{- define "loadmanager.name" -}}
{{- $name := .Release.Name }}
{{- if not (contains "loadmanager" $name) }}{{ $name = printf "%s-loadmanager" $name }}{{ end }}
{{- $name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "loadmanager.selector" -}}
app.kubernetes.io/name: loadmanager
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "loadmanager.labels" -}}
{{ include "loadmanager.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "loadmanager.chroot" -}}
{{- default (ternary "/loadmanager-attach" "/loadmanager/pulsar" (eq .Values.mode "attach")) .Values.zookeeper.chroot }}
{{- end }}

{{- /* The file that --config names. */}}
{{- define "loadmanager.config" -}}
[zookeeper]
{{- range $key, $value := set (deepCopy .Values.zookeeper) "chroot" (include "loadmanager.chroot" .) }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- with .Values.zookeeperTls }}
{{- if .secret }}
tls_ca_file = "/run/loadmanager/zookeeper-tls/ca.crt"
{{- if .clientCertificate }}
tls_certificate_file = "/run/loadmanager/zookeeper-tls/tls.crt"
tls_key_file = "/run/loadmanager/zookeeper-tls/tls.key"
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* What all pods have in common but their arguments. Takes a list: the root, and the name of the
     ServiceAccount. */}}
{{- define "loadmanager.pod" -}}
serviceAccountName: {{ index . 1 }}
{{- with index . 0 }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "loadmanager.image" -}}
image: {{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- define "loadmanager.tlsArguments" -}}
{{- with .Values.pulsar.tls }}
{{- if .secret }}
- --ca-file=/run/loadmanager/pulsar-tls/ca.crt
{{- if .clientCertificate }}
- --certificate-file=/run/loadmanager/pulsar-tls/tls.crt
- --key-file=/run/loadmanager/pulsar-tls/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "loadmanager.optionArguments" -}}
{{- range $name, $value := .Values.options }}
{{- if kindIs "slice" $value }}
{{- range $value }}
- {{ printf "--%s=%v" $name . | quote }}
{{- end }}
{{- else if kindIs "bool" $value }}
{{- if $value }}
- --{{ $name }}
{{- end }}
{{- else }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}
{{- end }}
{{- end }}

{{- define "loadmanager.environment" -}}
- name: LOADMANAGER_PULSAR
  value: {{ .Values.pulsar.url | quote }}
{{- if .Values.pulsar.token.secret }}
- name: LOADMANAGER_PULSAR_TOKEN_FILE
  value: /run/loadmanager/pulsar-token/token
{{- end }}
{{- end }}

{{- define "loadmanager.zookeeperEnvironment" -}}
{{- with .Values.zookeeperPassword }}
{{- if .secret }}
- name: LOADMANAGER_ZOOKEEPER__{{ upper .mechanism }}_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .secret }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- end }}

{{- define "loadmanager.lockedDown" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end }}

{{- define "loadmanager.pulsarMounts" -}}
{{- if .Values.pulsar.token.secret }}
- name: pulsar-token
  mountPath: /run/loadmanager/pulsar-token
  readOnly: true
{{- end }}
{{- if .Values.pulsar.tls.secret }}
- name: pulsar-tls
  mountPath: /run/loadmanager/pulsar-tls
  readOnly: true
{{- end }}
{{- end }}

{{- define "loadmanager.pulsarVolumes" -}}
{{- with .Values.pulsar.token }}
{{- if .secret }}
- name: pulsar-token
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    items:
      - key: {{ .key }}
        path: token
{{- end }}
{{- end }}
{{- with .Values.pulsar.tls }}
{{- if .secret }}
- name: pulsar-tls
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- end }}

{{- define "loadmanager.electionMounts" -}}
- name: config
  mountPath: /etc/loadmanager
  readOnly: true
{{- include "loadmanager.zookeeperTlsMount" . }}
{{- end }}

{{- define "loadmanager.zookeeperTlsMount" }}
{{- if .Values.zookeeperTls.secret }}
- name: zookeeper-tls
  mountPath: /run/loadmanager/zookeeper-tls
  readOnly: true
{{- end }}
{{- end }}

{{- /* Takes a list: the root, and the name of the ConfigMap. */}}
{{- define "loadmanager.electionVolumes" -}}
- name: config
  configMap:
    name: {{ index . 1 }}
{{- include "loadmanager.zookeeperTlsVolume" (index . 0).Values.zookeeperTls }}
{{- end }}

{{- define "loadmanager.zookeeperTlsVolume" }}
{{- if .secret }}
- name: zookeeper-tls
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "loadmanager.probes" -}}
ports:
  - name: metrics
    containerPort: {{ .Values.metrics.port }}
# The event loop answers, so one that hangs is found; /health also finds rounds that do not begin.
startupProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 1
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /health, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /metrics, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end }}
